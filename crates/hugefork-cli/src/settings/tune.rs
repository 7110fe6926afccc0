//! `bench --tune`: grows the hugetlb pool as the rivals need it; the [guardian](super::guardian) puts it back. The
//! guardian also puts back the sizes of folios, which samples set themselves. hugefork's own settings stay as they are.

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

// Not vm.nr_hugepages, which is the pool of the default size: that need not be 2 MiB.
const HUGETLB: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// Settings that stay changed as long as this lives.
#[derive(Debug)]
pub(crate) struct Tuning {
    /// None once it has ended.
    guardian: Option<Child>,
    /// A warning of a setting that falls short of the plan's needs.
    pub(crate) shortfall: Option<String>,
}

impl Tuning {
    /// Sets the machine up for `plan`.
    pub(crate) fn apply(plan: &Plan) -> Result<Tuning, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::Usage(
                "--tune: changes kernel settings and needs root; run the bench with sudo, or leave --tune out"
                    .to_owned(),
            ));
        }
        // From here on the guardian puts things back, however this process ends.
        let mut tuning = Tuning { guardian: Some(start_guardian(&settings(plan))?), shortfall: None };
        // Only now, since the guardian may have restored settings that an earlier run had left changed.
        let host = Host::read();
        tuning.shortfall = grow_hugetlb(plan, &host)?;
        Ok(tuning)
    }

    /// Puts everything back, and says so if that failed.
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
    /// On the way out of an error or a panic.
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("error: {error:#}");
        }
    }
}

/// The settings that may change. Those that this kernel does not have are not set either.
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
            // It has printed the obstacle, unless it was killed.
            if why.is_empty() {
                bail!("--tune: the guardian of the settings ended at once ({status})")
            } else {
                bail!("{why}")
            }
        }
    }
}

/// Grows the pool of 2 MiB pages until it has as many free as the plan needs. Never shrinks it: its pages may be in
/// use.
fn grow_hugetlb(plan: &Plan, host: &Host) -> anyhow::Result<Option<String>> {
    let wanted = plan.hugetlb_bytes();
    let missing = wanted.saturating_sub(host.hugetlb_free());
    if missing == 0 {
        return Ok(None);
    }
    if !Path::new(HUGETLB).exists() {
        return Ok(Some("this kernel has no hugetlb pages of 2MiB".to_owned()));
    }
    // A quarter is left: the subjects that do not use hugetlb pages need memory too, and so does the machine.
    let grow = missing.min(host.available_bytes / 4 * 3) / HUGE_PAGE;
    let before = pages()?;
    let asked = before + grow;
    set(HUGETLB, &asked.to_string())?;
    if pages()? < asked {
        // Fragmented: have the kernel move pages together, then ask once more.
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
