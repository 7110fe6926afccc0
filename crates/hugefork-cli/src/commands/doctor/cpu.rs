//! The processor, and the kernels that clear and copy on it.

use std::env;

use hugefork::ByteSize;
use hugefork::machine::{self, Survey};
use hugefork_kernels::PrimitiveName;

use super::check::{About, Check, NOT_TRIED};
use super::root::Root;

pub(super) fn look(root: &Root, survey: Option<&Survey>) -> Vec<Check> {
    vec![
        cpu(root, survey.map(|survey| survey.primitives.as_slice())),
        caches(root),
        survey.map_or_else(not_tried, kernels),
    ]
}

fn cpu(root: &Root, primitives: Option<&[(PrimitiveName, bool)]>) -> Check {
    let about = About("cpu", "stores that bypass the cache clear faster, and leave the cache to the program");
    let info = root.text("/proc/cpuinfo").unwrap_or_default();
    let count = info.lines().filter(|line| line.starts_with("processor")).count();
    let named = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let found = format!("{}, {count} online", named.map_or("unknown", |(_, name)| name.trim()));
    let Some(primitives) = primitives else { return about.skip(found) };
    let has: Vec<PrimitiveName> = primitives.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    let names = has.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
    if has.iter().any(|name| name.is_non_temporal()) {
        return about.pass(format!("{found}: {names}"));
    }
    about.warn(format!("{found}: {names}, and nothing that bypasses the cache"))
}

fn caches(root: &Root) -> Check {
    let about = About("caches", "the window of a clear has to fit in them, and the areas of a bench must not");
    let cpu = "/sys/devices/system/cpu/cpu0/cache";
    let one = |index: &String| {
        let of = |name| root.text(&format!("{cpu}/{index}/{name}"));
        let kib: usize = of("size")?.strip_suffix('K')?.parse().ok()?;
        (of("type")? != "Instruction").then_some(format!("L{} {}", of("level")?, ByteSize(kib << 10)))
    };
    let levels: Vec<String> = root.names(cpu).iter().filter_map(one).collect();
    if levels.is_empty() { about.skip("unknown, as in some VMs") } else { about.pass(levels.join(", ")) }
}

const KERNELS: About =
    About("kernels", "how blocks are cleared and copied: calibrated, unless the environment pins it");

fn not_tried() -> Check {
    KERNELS.skip(NOT_TRIED)
}

fn kernels(survey: &Survey) -> Check {
    let pins = ["HUGEFORK_KERNEL", "HUGEFORK_WINDOW"].into_iter().filter(|name| env::var_os(name).is_some());
    let pins: Vec<&str> = pins.collect();
    let found = format!("clear {}, copy {}", survey.clear_kernel, survey.copy_kernel);
    if !pins.is_empty() {
        let pins = pins.join(" ");
        let check = match machine::kernels() {
            Ok(_) => KERNELS.warn(format!("{found}: pinned by {pins}")),
            Err(error) => KERNELS.fail(error.to_string()),
        };
        return check.run(format!("unset {pins}"));
    }
    if survey.calibration.is_empty() {
        return KERNELS.warn(format!("{found}: not measured, since there were no 8 MiB to measure on"));
    }
    KERNELS.pass(found)
}

#[cfg(test)]
mod tests {
    use super::super::check::Status;
    use super::*;

    #[test]
    fn a_cpu_without_non_temporal_stores_is_a_warning() {
        let status = |primitives: &[(PrimitiveName, bool)]| cpu(&Root("/".into()), Some(primitives)).status;
        assert_eq!(status(&[(PrimitiveName::Portable, true)]), Status::Warn);
        let nt = PrimitiveName::ALL.iter().find(|name| name.is_non_temporal()).unwrap();
        assert_eq!(status(&[(*nt, true)]), Status::Pass);
        assert_eq!(status(&[(*nt, false)]), Status::Warn);
    }
}
