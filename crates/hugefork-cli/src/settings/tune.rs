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

use super::guardian::READY;
use super::lock::Lock;
use super::setting::read;
use crate::failure::Failure;

// Not vm.nr_hugepages: that sets the pool of the default size, which need not be 2 MiB.
const HUGETLB: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// Changed settings; dropping this restores them.
#[derive(Debug)]
pub(crate) struct Tuning {
    /// `None` after the guardian has ended.
    guardian: Option<Child>,
    /// The reason why a setting is not as the plan needs it.
    pub(crate) shortfall: Option<String>,
}

impl Tuning {
    /// Changes the settings for `plan`.
    pub(crate) fn apply(plan: &Plan) -> Result<Tuning, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::Usage(
                "--tune: changes kernel settings and needs root; run the bench with sudo, or leave --tune out"
                    .to_owned(),
            ));
        }
        // From here on the guardian restores the settings, however this process ends.
        let mut tuning = Tuning { guardian: Some(start_guardian(&settings(plan))?), shortfall: None };
        // Read only now: the guardian may have restored settings of an earlier run.
        let host = Host::read();
        tuning.shortfall = grow_hugetlb(plan, &host)?;
        Ok(tuning)
    }

    /// Restores everything, and reports a failure.
    pub(crate) fn restore(mut self) -> anyhow::Result<()> {
        self.end()
    }

    fn end(&mut self) -> anyhow::Result<()> {
        let Some(mut guardian) = self.guardian.take() else {
            return Ok(());
        };
        drop(guardian.stdin.take());
        let status = guardian.wait().context("waiting for the guardian of the settings")?;
        if !status.success() {
            bail!("--tune: not all settings could be put back (see above)");
        }
        Ok(())
    }
}

impl Drop for Tuning {
    /// Reached after an error or a panic.
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("error: {error:#}");
        }
    }
}

/// The settings that may be changed. Settings that this kernel lacks are skipped.
fn settings(plan: &Plan) -> Vec<PathBuf> {
    let mut settings = vec![PathBuf::from(HUGETLB)];
    settings.retain(|setting| setting.exists());
    if plan.wants_folios() {
        settings.extend(folios::paths());
    }
    settings
}

fn start_guardian(settings: &[PathBuf]) -> anyhow::Result<Child> {
    let this = std::env::current_exe().context("--tune: finding this program")?;
    let mut guardian = Command::new(this)
        .args(["tune-guardian", "--lock"])
        .arg(Lock::path())
        .args(settings)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("--tune: starting the guardian of the settings")?;
    let mut line = String::new();
    let stdout = guardian.stdout.take().expect("piped above");
    BufReader::new(stdout).read_line(&mut line).context("--tune: waiting for the guardian of the settings")?;
    match line.trim() {
        READY => Ok(guardian),
        why => {
            let status = guardian.wait().context("--tune: waiting for the guardian of the settings")?;
            // The guardian prints the reason, unless it was killed.
            if why.is_empty() {
                bail!("--tune: the guardian of the settings ended at once ({status})")
            } else {
                bail!("{why}")
            }
        }
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
    set(HUGETLB, &asked.to_string())?;
    if pages()? < asked {
        // Memory is fragmented: the kernel moves pages together, then a second attempt follows.
        let _ = fs::write(COMPACT, "1");
        set(HUGETLB, &asked.to_string())?;
    }
    let got = pages()?;
    Ok((got < before + missing.div_ceil(HUGE_PAGE)).then(|| {
        format!(
            "--tune wanted {} more hugetlb pages of 2MiB and got {}: memory is short or fragmented; \
             take a smaller --size, or try after a boot",
            missing.div_ceil(HUGE_PAGE),
            got.saturating_sub(before)
        )
    }))
}

fn pages() -> anyhow::Result<usize> {
    read(Path::new(HUGETLB))?.parse().with_context(|| format!("reading {HUGETLB}"))
}

fn set(path: &str, value: &str) -> anyhow::Result<()> {
    fs::write(path, value).with_context(|| format!("--tune: writing {value} to {path}"))
}
