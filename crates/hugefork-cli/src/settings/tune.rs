//! `bench --tune`: grows the hugetlb pool for the rivals; the [guardian](super::guardian) restores it.
//! It also restores the folio sizes, which samples set themselves. hugefork's own settings stay as
//! they are.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use hugefork_bench::folios;
use hugefork_bench::kernel_memory::HUGE_PAGE;
use hugefork_bench::{Host, Plan};

use super::guardian::{COMMAND, READY};
use super::{LOCK, value};
use crate::failure::Failure;

// Not vm.nr_hugepages: that sets the pool of the default size, which need not be 2 MiB.
const HUGETLB: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// Changed settings. The guardian restores them when this is dropped, and however this process ends.
#[derive(Debug)]
pub(crate) struct Tuning {
    guardian: Child,
    /// The reason why a setting is not as the plan needs it.
    pub(crate) shortfall: Option<String>,
}

impl Tuning {
    /// Changes the settings for `plan`.
    pub(crate) fn apply(plan: &Plan) -> Result<Tuning, Failure> {
        if !rustix::process::geteuid().is_root() {
            let why = "--tune: changes kernel settings and needs root; run the bench with sudo, or leave --tune out";
            return Err(Failure::usage(why));
        }
        // Settings that this kernel lacks are skipped.
        let mut settings = vec![PathBuf::from(HUGETLB)];
        settings.retain(|setting| setting.exists());
        if plan.wants_folios() {
            settings.extend(folios::paths());
        }
        let guardian = start_guardian(&settings)?;
        // Read only now: the guardian may have restored settings of an earlier run.
        let shortfall = grow_hugetlb(plan, &Host::read())?;
        Ok(Tuning { guardian, shortfall })
    }

    /// Restores everything, and reports a failure.
    pub(crate) fn restore(mut self) -> anyhow::Result<()> {
        drop(self.guardian.stdin.take());
        if !self.guardian.wait().context("waiting for the guardian of the settings")?.success() {
            bail!("--tune: not all settings could be put back (see above)");
        }
        Ok(())
    }
}

fn start_guardian(settings: &[PathBuf]) -> anyhow::Result<Child> {
    let this = std::env::current_exe().context("--tune: finding this program")?;
    let mut command = Command::new(this);
    command.args([COMMAND, LOCK]).args(settings).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut guardian = command.spawn().context("--tune: starting the guardian of the settings")?;
    let mut line = String::new();
    let stdout = guardian.stdout.take().expect("piped above");
    BufReader::new(stdout).read_line(&mut line).context("--tune: waiting for the guardian of the settings")?;
    match line.trim() {
        READY => Ok(guardian),
        // The guardian prints the reason, unless it was killed.
        "" => bail!("--tune: the guardian of the settings ended at once ({})", guardian.wait()?),
        why => bail!("{why}"),
    }
}

/// Grows the pool of 2 MiB pages until enough pages for the plan are free. Never shrinks it, because its pages may be
/// in use.
fn grow_hugetlb(plan: &Plan, host: &Host) -> anyhow::Result<Option<String>> {
    let wanted = plan.hugetlb_bytes();
    let missing = wanted.saturating_sub(host.hugetlb_free());
    if missing == 0 {
        return Ok(None);
    }
    if !Path::new(HUGETLB).exists() {
        return Ok(Some("this kernel has no hugetlb pages of 2MiB".to_owned()));
    }
    // Leaves a quarter of the memory: other subjects and the machine need it.
    let grow = missing.min(host.available_bytes / 4 * 3) / HUGE_PAGE;
    let before = pages()?;
    let asked = before + grow;
    set(asked)?;
    if pages()? < asked {
        // Memory is fragmented: the kernel moves pages together, then a second attempt follows.
        let _ = fs::write(COMPACT, "1");
        set(asked)?;
    }
    let (got, wanted) = (pages()?.saturating_sub(before), missing.div_ceil(HUGE_PAGE));
    let shortfall = format!(
        "--tune wanted {wanted} more hugetlb pages of 2MiB and got {got}: memory is short or fragmented; take a \
         smaller --size, or try after a boot"
    );
    Ok((got < wanted).then_some(shortfall))
}

fn pages() -> anyhow::Result<usize> {
    value(Path::new(HUGETLB))?.parse().with_context(|| format!("--tune: reading {HUGETLB}"))
}

fn set(pages: usize) -> anyhow::Result<()> {
    fs::write(HUGETLB, pages.to_string()).with_context(|| format!("--tune: writing {pages} to {HUGETLB}"))
}
