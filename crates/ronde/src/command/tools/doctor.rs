//! `ronde doctor`: checks whether this host can run jobs.

use std::net::{TcpListener, TcpStream};
use std::path::Path;

use clap::Args;
use ronde::{environment, host};
use ronde_report::TextTable;
use ronde_tracking::render::{bytes, count};
use rustix::process::{Resource, getrlimit};
use serde_json::json;

use crate::command::console::print;
use crate::command::exit;

/// Memory below which even small models do not train.
const MEMORY_MIN: u64 = 256 << 20;
/// Space in the shared memory file system below which groups of workers on this host may fail.
const SHARED_MEMORY_MIN: u64 = 16 << 20;
/// Number of open files that a launcher with a few workers needs.
const OPEN_FILES_MIN: u64 = 256;
/// Seconds since 1970 at the beginning of 2025: a clock before that is wrong, and TLS certificates are not valid yet.
const CLOCK_MIN: u64 = 1_735_689_600;

/// Arguments of `ronde doctor`.
#[derive(Args)]
pub(crate) struct DoctorArguments {
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The result of one check.
struct Finding {
    name: &'static str,
    /// The measured value.
    value: String,
    /// What is wrong and how to correct it, if anything.
    problem: Option<String>,
}

pub(crate) fn doctor(arguments: &DoctorArguments) -> i32 {
    let findings = [
        build(),
        cpu(),
        memory(),
        shared_memory(Path::new("/dev/shm")),
        ports(),
        open_files(),
        clock(),
        cache(),
    ];
    let text = match arguments.json {
        true => to_json(&findings),
        false => table(&findings),
    };
    match print(text) {
        exit::DONE => i32::from(findings.iter().any(|finding| finding.problem.is_some())),
        failed => failed,
    }
}

fn table(findings: &[Finding]) -> String {
    let mut table = TextTable::without_head();
    for finding in findings {
        let problem = finding.problem.iter();
        let problem: String = problem.map(|problem| format!("\n{problem}")).collect();
        let mark = if problem.is_empty() { "ok" } else { "FAIL" };
        let value = format!("{}{problem}", finding.value);
        table.row([mark, finding.name, &value]);
    }
    match findings.iter().filter(|one| one.problem.is_some()).count() {
        0 => format!("{table}\nthis host can run jobs"),
        failed => format!("{table}\n{failed} of {} checks failed", findings.len()),
    }
}

fn to_json(findings: &[Finding]) -> String {
    let checks = findings.iter().map(|finding| {
        json!({
            "name": finding.name,
            "value": finding.value,
            "ok": finding.problem.is_none(),
            "problem": finding.problem,
        })
    });
    json!({ "checks": checks.collect::<Vec<_>>() }).to_string()
}

fn build() -> Finding {
    let features = if cfg!(feature = "full") {
        "full"
    } else {
        "default"
    };
    Finding {
        name: "build",
        value: format!(
            "ronde {} for {} on {}, features: {features}, engine: {}",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::ARCH,
            std::env::consts::OS,
            ronde_engine::engine_name()
        ),
        problem: None,
    }
}

fn cpu() -> Finding {
    let cores = std::thread::available_parallelism();
    let features = ronde_engine::cpu_features();
    Finding {
        name: "CPU",
        value: match &cores {
            Ok(cores) => format!("{cores} cores, {features}"),
            Err(_) => features.to_string(),
        },
        problem: cores.err().map(|error| {
            format!("cannot read the number of cores: {error}; pass the number of workers with -n")
        }),
    }
}

fn memory() -> Finding {
    let available = host::available_memory_bytes();
    let problem = match available {
        Some(available) if available < MEMORY_MIN => Some(format!(
            "less than {}: end other programs or raise the limit of the container",
            bytes(MEMORY_MIN)
        )),
        _ => None,
    };
    Finding {
        name: "memory",
        value: available.map_or_else(
            || "not reported by the system".to_owned(),
            |available| format!("{} available", bytes(available)),
        ),
        problem,
    }
}

fn shared_memory(folder: &Path) -> Finding {
    let name = "shared memory";
    if !folder.is_dir() {
        return Finding {
            name,
            value: format!("no {}", folder.display()),
            problem: Some("mount a tmpfs there: workers of one host share memory".to_owned()),
        };
    }
    let free = host::free_disk_bytes(folder);
    let problem = match free {
        Some(free) if free < SHARED_MEMORY_MIN => Some(format!(
            "less than {}: remove files there, or give the container more (`--shm-size=1g`)",
            bytes(SHARED_MEMORY_MIN)
        )),
        _ => None,
    };
    Finding {
        name,
        value: match free {
            Some(free) => format!("{} free in {}", bytes(free), folder.display()),
            None => format!("{}, size not reported", folder.display()),
        },
        problem,
    }
}

fn ports() -> Finding {
    let connected = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| {
        let address = listener.local_addr()?;
        TcpStream::connect(address)?;
        listener.accept()?;
        Ok(address)
    });
    Finding {
        name: "loopback",
        value: match &connected {
            Ok(_) => "ports can be bound and connected".to_owned(),
            Err(error) => format!("cannot use a port of 127.0.0.1: {error}"),
        },
        problem: connected
            .err()
            .map(|_| "start the interface: `ip link set lo up`".to_owned()),
    }
}

fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile).current;
    let problem = match limit {
        Some(limit) if limit < OPEN_FILES_MIN => {
            Some("raise the limit: `ulimit -n 4096`".to_owned())
        }
        _ => None,
    };
    Finding {
        name: "open files",
        value: limit.map_or_else(
            || "no limit".to_owned(),
            |limit| format!("limit {}", count(limit)),
        ),
        problem,
    }
}

fn clock() -> Finding {
    let seconds = ronde_clock::unix_ms() / 1000;
    Finding {
        name: "clock",
        value: format!(
            "{} UTC",
            crate::command::run::checkpoint::time(seconds * 1000)
        ),
        problem: (seconds < CLOCK_MIN)
            .then(|| "set the clock: TLS certificates are not valid yet".to_owned()),
    }
}

fn cache() -> Finding {
    let name = "cache folder";
    let Some(folder) = environment::cache_folder() else {
        return Finding {
            name,
            value: "none".to_owned(),
            problem: Some("set HOME or XDG_CACHE_HOME to an absolute path".to_owned()),
        };
    };
    let existing = folder.ancestors().find(|path| path.exists());
    let writable =
        existing.is_some_and(|path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok());
    let free = host::free_disk_bytes(&folder)
        .map_or_else(String::new, |free| format!(", {} free", bytes(free)));
    Finding {
        name,
        value: format!("{}{free}", folder.display()),
        problem: (!writable).then(|| "it is not writable: set XDG_CACHE_HOME".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_folder_is_a_problem_and_an_existing_one_is_not() {
        let missing = shared_memory(Path::new("/no/such/folder"));
        assert!(missing.problem.is_some());
        let folder = tempfile::tempdir().unwrap();
        let found = shared_memory(folder.path());
        assert!(found.value.contains("free in"), "{}", found.value);
        let text = table(&[build(), missing]);
        assert!(text.contains("FAIL  shared memory"), "{text}");
        assert!(text.ends_with("1 of 2 checks failed"), "{text}");
    }
}
