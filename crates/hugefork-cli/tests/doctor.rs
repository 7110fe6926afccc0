//! `doctor`, on this machine and on files of other machines; completions and man pages.
//!
//! `machines/NAME.txt` contains the files of a machine, and `machines/NAME.out` the output of
//! doctor for it. After a change of the text, run `HUGEFORK_GOLDEN=write cargo test -p hugefork-cli
//! --test doctor`, and check the difference.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn hugefork(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hugefork"));
    command.args(line.split_whitespace()).env_remove("HUGEFORK_KERNEL").env_remove("HUGEFORK_WINDOW");
    command
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn machines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines")
}

/// A directory with the files of a machine, removed at the end.
struct Machine(PathBuf);

impl Machine {
    fn unpack(name: &str, test: &str) -> Machine {
        let root = std::env::temp_dir().join(format!("hugefork-doctor-{name}-{test}-{}", std::process::id()));
        let files = fs::read_to_string(machines().join(format!("{name}.txt"))).unwrap();
        for file in files.split("== /").skip(1) {
            let (path, contents) = file.split_once('\n').unwrap();
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
        Machine(root)
    }

    fn doctor(&self, options: &str) -> Output {
        hugefork("doctor").args(options.split_whitespace()).arg("--root").arg(&self.0).output().unwrap()
    }

    fn json(&self, options: &str) -> Value {
        serde_json::from_slice(&self.doctor(&format!("--json {options}")).stdout).unwrap()
    }

    fn setting(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap().trim().to_owned()
    }

    /// Runs a command that doctor printed for this machine.
    fn run(&self, command: &str) {
        assert!(command.contains(self.0.to_str().unwrap()), "`{command}` is for another machine");
        assert!(Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// All checks of a JSON output.
fn checks(json: &Value) -> impl Iterator<Item = &Value> {
    json["checks"].as_array().unwrap().iter()
}

fn check<'a>(json: &'a Value, name: &str) -> &'a Value {
    checks(json).find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check `{name}`"))
}

const SHMEM: &str = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
const PAGES: &str = "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const MAP_COUNT: &str = "proc/sys/vm/max_map_count";

#[test]
fn each_machine_gets_its_diagnosis() {
    for (name, strict) in [("good", 0), ("bare", 3), ("container", 3), ("no-thp", 4)] {
        let machine = Machine::unpack(name, "golden");
        let output = machine.doctor("");
        assert_eq!(output.status.code(), Some(0), "{name}");
        let said = text(&output).replace(machine.0.to_str().unwrap(), "");
        let golden = machines().join(format!("{name}.out"));
        if std::env::var_os("HUGEFORK_GOLDEN").is_some() {
            fs::write(&golden, &said).unwrap();
        }
        assert_eq!(said, fs::read_to_string(&golden).unwrap(), "{name}");
        assert!(said.lines().all(|line| line.contains("mend: ") || line.chars().count() <= 80), "{said}");
        assert_eq!(machine.doctor("--strict").status.code(), Some(strict), "{name}");
    }
}

#[test]
fn every_machine_has_the_same_checks_in_json() {
    let names = |json: &Value| checks(json).map(|check| check["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let expected = [
        "backing",
        "shmem-thp",
        "own-tmpfs",
        "thp",
        "hugetlb",
        "free-memory",
        "memory",
        "memory-limit",
        "hugetlb-limit",
        "map-count",
        "address-space",
        "overcommit",
        "swap",
        "core-dump",
        "linux",
        "page-grain",
        "system-calls",
        "run-pool",
        "pressure",
        "kernels",
    ];
    let here: Value = serde_json::from_slice(&hugefork("doctor --json").output().unwrap().stdout).unwrap();
    assert!(here["host"]["cpus"].as_u64().unwrap() > 0);
    let others = ["good", "bare", "container", "no-thp"].map(|name| Machine::unpack(name, "json").json(""));
    for json in others.iter().chain([&here]) {
        assert_eq!(json["schema"], 3);
        assert_eq!(names(json), expected);
        let worst =
            ["fail", "warn", "pass"].into_iter().find(|word| checks(json).any(|check| check["status"] == *word));
        assert_eq!(json["status"], worst.unwrap());
        assert!(json["fixes"].is_null());
        for check in checks(json) {
            assert!(["pass", "warn", "fail", "skip"].contains(&check["status"].as_str().unwrap()), "{check}");
            assert!(!check["found"].as_str().unwrap().is_empty() && !check["why"].as_str().unwrap().is_empty());
            let Some(mend) = check.get("mend") else { continue };
            assert!(!mend["command"].as_str().unwrap().is_empty(), "{check}");
            assert!(mend["set"].is_null() || mend["set"]["path"].is_string() && mend["set"]["value"].is_string());
        }
    }
}

#[test]
fn fix_changes_the_printed_settings_and_undo_restores_them() {
    let machine = Machine::unpack("bare", "fix");
    let before = machine.doctor("");
    let json = machine.json("--fix");
    assert_eq!([SHMEM, MAP_COUNT, PAGES].map(|path| machine.setting(path)), ["advise", "524288", "0"]);
    assert_eq!([check(&json, "shmem-thp"), check(&json, "map-count")].map(|check| &check["status"]), ["pass", "pass"]);
    // Settings that people decide are unchanged.
    assert_eq!(check(&json, "overcommit")["status"], "warn");
    assert_eq!(machine.setting("proc/sys/vm/overcommit_memory"), "2");
    let fixed = json["fixes"].as_array().unwrap();
    let told = fixed.iter().map(|fix| [&fix["name"], &fix["what"]].map(|text| text.as_str().unwrap()));
    assert_eq!(told.collect::<Vec<_>>(), [["shmem-thp", "never -> advise"], ["map-count", "65530 -> 524288"]]);
    for fix in fixed {
        machine.run(fix["undo"].as_str().unwrap());
    }
    assert_eq!(text(&machine.doctor("")), text(&before));

    // The text output says the same as the JSON. At the second run nothing is left to fix.
    let said = text(&machine.doctor("--fix"));
    let undo = format!("fixed shmem-thp: never -> advise\n  undo: echo never > {}\n", machine.0.join(SHMEM).display());
    assert!(said.starts_with(&undo), "{said}");
    assert!(text(&machine.doctor("--fix")).starts_with("nothing to fix\n"));
}

#[test]
fn the_printed_remedy_works() {
    let machine = Machine::unpack("bare", "mend");
    let json = machine.json("");
    for name in ["shmem-thp", "map-count", "thp"] {
        machine.run(check(&json, name)["mend"]["command"].as_str().unwrap());
    }
    let json = machine.json("");
    for name in ["shmem-thp", "map-count", "thp"] {
        assert_eq!(check(&json, name)["status"], "pass", "{name}");
    }
}

#[test]
fn hugetlb_pages_are_reserved_on_request_and_never_released() {
    let machine = Machine::unpack("good", "hugetlb");
    assert_eq!(check(&machine.json("--hugepages 600"), "hugetlb")["status"], "warn");
    assert_eq!(machine.setting(PAGES), "512");
    machine.doctor("--fix --hugepages 100");
    assert_eq!(machine.setting(PAGES), "512");
    let json = machine.json("--fix --hugepages 600");
    assert_eq!(machine.setting(PAGES), "600");
    machine.run(json["fixes"][0]["undo"].as_str().unwrap());
    assert_eq!(machine.setting(PAGES), "512");
    // 56 GiB are available, and 512 pages exist: three quarters of both are 42 GiB.
    for (pages, status) in [("22016", 0), ("22017", 2), ("18446744073709551615", 2)] {
        assert_eq!(machine.doctor(&format!("--hugepages {pages}")).status.code(), Some(status), "{pages}");
    }
    let refused = machine.doctor("--fix --hugepages 22017");
    assert!(String::from_utf8(refused.stderr).unwrap().starts_with("error: --hugepages 22017: needs 42 GiB more"));
    assert_eq!(machine.setting(PAGES), "512");
}

/// `deny` is a decision of the administrator.
#[test]
fn fix_respects_the_administrators_deny() {
    let machine = Machine::unpack("container", "deny");
    let before = machine.setting(SHMEM);
    assert!(text(&machine.doctor("--fix")).starts_with("nothing to fix\n"));
    assert_eq!(machine.setting(SHMEM), before);
}

/// The setting for 2 MiB counts, unless it is `inherit`.
#[test]
fn fix_changes_the_setting_of_the_page_size() {
    let machine = Machine::unpack("good", "size");
    let of_size = "sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";
    fs::write(machine.0.join(of_size), "always inherit within_size advise [never]\n").unwrap();
    assert_eq!(check(&machine.json(""), "shmem-thp")["status"], "warn");
    assert_eq!(check(&machine.json("--fix"), "shmem-thp")["status"], "pass");
    assert_eq!(machine.setting(of_size), "advise");
    assert_eq!(machine.setting(SHMEM), "always within_size [advise] never deny force");
}

#[test]
fn a_failed_fix_has_status_1_and_prints_the_command() {
    let machine = Machine::unpack("bare", "refused");
    // The replaced file can be read as a setting, but not even root can write to it.
    fs::remove_file(machine.0.join(MAP_COUNT)).unwrap();
    std::os::unix::fs::symlink("/proc/sys/kernel/ngroups_max", machine.0.join(MAP_COUNT)).unwrap();
    let output = machine.doctor("--fix --strict");
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output);
    assert!(said.contains("not fixed map-count: ") && said.contains("  as root: echo 524288 > "), "{said}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: --fix: 1 setting(s)") && error.lines().count() == 1, "{error}");
    assert_eq!(machine.setting(SHMEM), "advise", "the others are set all the same");
}

#[test]
fn wrong_arguments_have_status_2() {
    for line in ["doctor --root /nonexistent", "doctor --hugepages many", "doctor --json -v", "completions nosh"] {
        let output = hugefork(line).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(output.stdout.is_empty());
        assert!(String::from_utf8(output.stderr).unwrap().starts_with("error: "), "{line}");
    }
}

#[test]
fn this_machine_is_checked_by_trials() {
    let output = hugefork("doctor --verbose").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output);
    assert!(!said.contains("not tried") && !said.contains('\x1b'), "{said}");
    assert!(said.lines().last().unwrap().contains(" passed, "), "{said}");
    // Each line says why it matters.
    let lines = |part: &str| said.lines().filter(|line| line.contains(part)).count();
    assert_eq!(lines("        why:  "), 20, "{said}");
}

#[test]
fn a_bad_pin_is_a_failure_with_its_name() {
    let output = hugefork("doctor --json --strict").env("HUGEFORK_KERNEL", "nonsense").output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(check(&json, "kernels")["mend"]["command"], "unset HUGEFORK_KERNEL");
    let output = hugefork("doctor --json").env("HUGEFORK_KERNEL", "straight/rep").output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(check(&json, "kernels")["status"], "warn");
    assert!(check(&json, "kernels")["found"].as_str().unwrap().contains("clear straight/rep"));
}

/// All lines show the same required size.
#[test]
fn all_lines_show_the_same_required_addresses() {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -v 12582912 && exec \"$0\" doctor --json", env!("CARGO_BIN_EXE_hugefork")]);
    let output = limited.output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = |name: &str| check(&json, name)["found"].as_str().unwrap().replace(' ', "");
    assert!(found("address-space").contains("12GiB,but17GiBareneeded"), "{json:#}");
    assert!(found("backing").contains("wantsatleast17GiB"), "{json:#}");
}

/// The subcommands and long options in the `--help` of `command`.
fn promised(command: &str) -> (Vec<String>, Vec<String>) {
    let help = text(&hugefork(&format!("{command} --help")).output().unwrap());
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands = commands.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = commands.map(|line| line.split_whitespace().next().unwrap().to_owned()).filter(|name| name != "help");
    let options = help.lines().skip_while(|line| *line != "Options:").skip(1).take_while(|line| !line.is_empty());
    let is_long = |word: &&str| word.starts_with("--");
    let longs = options
        .filter(|line| line.trim_start().starts_with('-'))
        .filter_map(|line| line.split_whitespace().take(2).find(is_long)?.split([',', '[']).next())
        .map(str::to_owned);
    (names.collect(), longs.collect())
}

/// Every public command, with its options.
fn everything() -> Vec<(String, Vec<String>)> {
    let (mut found, mut open) = (Vec::new(), vec![String::new()]);
    while let Some(command) = open.pop() {
        let (names, options) = promised(&command);
        open.extend(names.iter().map(|name| format!("{command} {name}").trim().to_owned()));
        found.push((command, options));
    }
    found
}

#[test]
fn completions_contain_every_command_and_option() {
    let everything = everything();
    let has = |command: &str, option: &str| {
        everything.iter().any(|(name, options)| name == command && options.iter().any(|one| one == option))
    };
    assert!(has("doctor", "--fix") && has("bench", "--tune") && everything.len() > 4, "{everything:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = hugefork(&format!("completions {shell}")).output().unwrap();
        let script = text(&output);
        assert!(output.status.success() && !script.contains("tune-guardian"), "{shell}");
        for (command, options) in &everything {
            let name = command.split(' ').next_back().unwrap();
            assert!(script.contains(name), "{shell} does not know {command}");
            for option in options {
                let word = option.trim_start_matches('-');
                assert!(script.contains(word), "{shell} does not know {command} {option}");
            }
        }
    }
}

#[test]
fn man_pages_contain_every_command_and_option() {
    let dir = Machine::unpack("good", "man");
    let pages = dir.0.join("share/man1");
    assert!(hugefork("man").arg(&pages).status().unwrap().success());
    let everything = everything();
    for (command, options) in &everything {
        let name = format!("hugefork {command}").trim().replace(' ', "-");
        let page = fs::read_to_string(pages.join(format!("{name}.1"))).unwrap().replace("\\-", "-");
        for option in options {
            assert!(page.contains(option), "{name}.1 does not tell of {option}");
        }
    }
    assert_eq!(fs::read_dir(&pages).unwrap().count(), everything.len());
    let main = text(&hugefork("man").output().unwrap());
    assert_eq!(main, fs::read_to_string(pages.join("hugefork.1")).unwrap());
    assert!(main.contains("hugefork\\-doctor(1)") && !main.contains("guardian"), "{main}");
}
