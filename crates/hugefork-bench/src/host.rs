//! The machine on which a result was measured, and whose memory the plan divides among the areas: CPU, caches,
//! kernel, huge pages, memory, hypervisor.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use hugefork::ByteSize;
use serde::{Deserialize, Serialize};

use crate::measure::affinity::allowed_cpus;
use crate::memory::kernel_memory::HUGE_PAGE;
use crate::memory::thp::Thp;

/// The properties of the machine that decide the figures. A property that cannot be read is absent, never guessed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The CPU's name.
    pub cpu: String,
    /// CPUs that the process may use.
    pub cpus: usize,
    /// The first CPU's caches, nearest first.
    pub caches: Vec<Cache>,
    /// Operating system and its release.
    pub kernel: String,
    /// The size of all memory, with its unit.
    pub memory: String,
    /// Transparent huge pages.
    pub thp: Thp,
    /// The pools of hugetlb pages.
    pub hugetlb: Vec<HugetlbPool>,
    /// `vm.max_map_count`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_map_count: Option<u64>,
    /// The frequency governor of the first CPU; absent where the guest has none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub governor: Option<String>,
    /// The hypervisor; absent on bare metal.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hypervisor: Option<String>,
    /// The CPUs that the process may use, by number.
    #[serde(skip)]
    pub cpu_numbers: Vec<usize>,
    /// All memory in bytes.
    #[serde(skip)]
    pub memory_bytes: usize,
    /// Memory in bytes that programs could allocate without swapping when [`Host::read`] ran.
    #[serde(skip)]
    pub available_bytes: usize,
}

/// One cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// The level, from 1, the cache nearest to the core.
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// The size of the cache, such as `32MiB`.
    pub size: String,
    /// The CPUs that share the cache, such as `0-1`.
    pub shared_by: String,
}

/// One hugetlb pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugetlbPool {
    /// The size of the pool's pages.
    pub page: String,
    /// Number of pages in the pool.
    pub total: usize,
    /// Number of pages that are neither in use nor reserved by a mapping.
    pub free: usize,
}

impl Host {
    /// Reads the properties of the running system.
    pub fn read() -> Host {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory_bytes = meminfo_bytes(&meminfo, "MemTotal");
        let cpu_numbers = allowed_cpus();
        Host {
            cpu: cpu_name(),
            cpus: cpu_numbers.len(),
            caches: caches(cpu_numbers[0]),
            kernel: kernel(),
            memory: format!("{}MiB", memory_bytes >> 20),
            thp: Thp::read(),
            hugetlb: hugetlb_pools(),
            max_map_count: read_trimmed("/proc/sys/vm/max_map_count").and_then(|text| text.parse().ok()),
            governor: read_trimmed(format!("/sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor", cpu_numbers[0])),
            hypervisor: hypervisor(),
            cpu_numbers,
            memory_bytes,
            available_bytes: meminfo_bytes(&meminfo, "MemAvailable"),
        }
    }

    /// Bytes of 2 MiB hugetlb pages that are neither in use nor reserved by a mapping.
    pub fn hugetlb_free(&self) -> usize {
        self.hugetlb.iter().filter(|pool| pool.page == "2MiB").map(|pool| pool.free * HUGE_PAGE).sum()
    }

    /// Bytes of the last-level cache that one core may use; 32 MiB if the kernel does not report the cache.
    pub fn last_level_cache(&self) -> usize {
        self.caches
            .iter()
            .filter(|cache| cache.kind != "Instruction")
            .max_by_key(|cache| cache.level)
            .and_then(|cache| cache.size.parse::<ByteSize>().ok())
            .map_or(32 << 20, |size| size.0)
    }

    /// The reason why a subject cannot have `bytes` of memory, with a remedy; `None` if the machine has that memory.
    pub(crate) fn lack_of_memory(&self, bytes: usize) -> Option<String> {
        // A tenth is left for the rest of the machine.
        let usable = self.available_bytes / 10 * 9;
        (bytes > usable).then(|| {
            format!("needs {}MiB of memory, {}MiB are available; take a smaller --size", bytes >> 20, usable >> 20)
        })
    }
}

fn read_trimmed(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn meminfo_bytes(meminfo: &str, field: &str) -> usize {
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse().ok())
        .map_or(0, |kib: usize| kib << 10)
}

fn cpu_name() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

fn caches(cpu: usize) -> Vec<Cache> {
    (0..8)
        .map_while(|index| {
            let of = |name| read_trimmed(format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{name}"));
            let kib: usize = of("size")?.strip_suffix('K')?.parse().ok()?;
            Some(Cache {
                level: of("level")?.parse().ok()?,
                kind: of("type")?,
                size: ByteSize(kib << 10).to_string(),
                shared_by: of("shared_cpu_list")?,
            })
        })
        .collect()
}

fn kernel() -> String {
    let name = |file| read_trimmed(format!("/proc/sys/kernel/{file}")).unwrap_or_default();
    format!("{} {}", name("ostype"), name("osrelease"))
}

fn hugetlb_pools() -> Vec<HugetlbPool> {
    let directory = Path::new("/sys/kernel/mm/hugepages");
    // The set sorts the sizes, because a directory lists its entries in any order.
    let sizes: BTreeSet<usize> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok())
        .collect();
    sizes
        .into_iter()
        .filter_map(|kib| {
            let of = |name| -> Option<usize> {
                read_trimmed(directory.join(format!("hugepages-{kib}kB")).join(name))?.parse().ok()
            };
            Some(HugetlbPool {
                page: ByteSize(kib << 10).to_string(),
                total: of("nr_hugepages")?,
                free: of("free_hugepages")?.saturating_sub(of("resv_hugepages").unwrap_or(0)),
            })
        })
        .collect()
}

#[cfg(target_arch = "x86_64")]
fn hypervisor() -> Option<String> {
    use raw_cpuid::{CpuId, Hypervisor};
    let info = CpuId::new().get_hypervisor_info()?;
    Some(match info.identify() {
        Hypervisor::KVM => "KVM".to_owned(),
        Hypervisor::Unknown(ebx, ecx, edx) => {
            let bytes: Vec<u8> = [ebx, ecx, edx].into_iter().flat_map(u32::to_le_bytes).collect();
            String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
        }
        known => format!("{known:?}"),
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn hypervisor() -> Option<String> {
    read_trimmed("/sys/hypervisor/type")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_read() {
        let host = Host::read();
        assert!(host.cpus > 0 && host.cpus == host.cpu_numbers.len());
        assert!(host.memory_bytes > 0 && host.available_bytes > 0);
        assert!(host.kernel.starts_with("Linux "), "{}", host.kernel);
        assert!(!host.cpu.is_empty());
    }

    #[test]
    fn the_last_level_counts_and_instruction_caches_do_not() {
        let cache = |level, kind: &str, size: &str| Cache {
            level,
            kind: kind.to_owned(),
            size: size.to_owned(),
            shared_by: "0".to_owned(),
        };
        let mut host = Host::default();
        assert_eq!(host.last_level_cache(), 32 << 20);
        host.caches = vec![cache(1, "Data", "48KiB"), cache(4, "Instruction", "1GiB"), cache(2, "Unified", "1MiB")];
        assert_eq!(host.last_level_cache(), 1 << 20);
    }

    #[test]
    fn meminfo_is_parsed() {
        let meminfo = "MemTotal:       1024 kB\nMemAvailable:    512 kB\n";
        assert_eq!(meminfo_bytes(meminfo, "MemTotal"), 1 << 20);
        assert_eq!(meminfo_bytes(meminfo, "MemFree"), 0);
    }

    #[test]
    fn only_what_is_recorded_goes_to_json_and_back() {
        let host = Host::read();
        let text = serde_json::to_string(&host).unwrap();
        assert!(!text.contains("available_bytes"));
        let back: Host = serde_json::from_str(&text).unwrap();
        assert_eq!(back.caches, host.caches);
        assert_eq!(back.thp, host.thp);
    }
}
