//! Checks the arguments of `ronde bench` and converts them to settings.

use std::ffi::OsString;
use std::path::Path;
use std::str::FromStr;

use ronde::host;
use ronde_bench::{
    BenchError, BenchTask, CollectivesReport, Columns, Hub, Machine, OperationKind, Settings,
    every_algorithm, parse_sizes,
};
use ronde_core::{DType, ReduceOp};

use super::BenchArguments;

/// Number of workers where none is requested.
const DEFAULT_WORKERS: usize = 2;
/// Maximum bytes of all ranks' buffers on hosts with more memory.
const MEMORY_BYTES_MAX: u64 = 8 << 30;

/// A benchmark that is ready to run.
#[derive(Debug)]
pub(super) struct PreparedBench {
    pub(super) settings: Settings,
    pub(super) worlds: Vec<usize>,
    pub(super) machine: Machine,
    pub(super) python: OsString,
    pub(super) reasons: bool,
}

impl PreparedBench {
    /// Returns the empty report.
    pub(super) fn report(&self) -> CollectivesReport {
        CollectivesReport::new(
            self.machine.clone(),
            self.settings.clone(),
            self.worlds.clone(),
        )
    }

    /// Returns the columns of the table.
    pub(super) fn columns(&self) -> Columns {
        Columns {
            against: self.settings.against.clone(),
            reasons: self.reasons,
        }
    }

    /// Returns the task of all ranks, encoded.
    ///
    /// # Errors
    /// As [`BenchTask::encode`].
    pub(super) fn task(&self, hub: &Hub) -> Result<String, BenchError> {
        let task = BenchTask {
            settings: self.settings.clone(),
            socket: hub.socket().to_owned(),
            cache_bytes: self.machine.cache_bytes(),
        };
        task.encode()
    }
}

/// Checks everything before anything is started. `started` is the number of ranks that another launcher has started.
pub(super) fn prepare(
    arguments: &BenchArguments,
    started: Option<usize>,
) -> Result<PreparedBench, BenchError> {
    let settings = Settings {
        operations: OperationKind::parse_list(&arguments.operations)?,
        sizes: parse_sizes(&arguments.sizes)?,
        algorithms: if arguments.choice {
            every_algorithm(arguments.hosts)
        } else {
            list(&arguments.algorithms)?
        },
        transports: list(&arguments.transports)?,
        memories: list(&arguments.memory)?,
        dtype: known("--dtype", &arguments.dtype, &DType::ALL)?,
        op: known("--op", &arguments.op, &ReduceOp::ALL)?,
        rounds: arguments.rounds,
        budget_s: arguments.budget,
        hosts: arguments.hosts,
        seed: arguments.seed,
        memory_bytes_max: memory_bytes_max(),
        against: list(&arguments.against)?,
    };
    let mut worlds = Vec::new();
    let requested = match (started, &*arguments.workers) {
        (Some(ranks), _) => vec![ranks],
        (None, []) => vec![DEFAULT_WORKERS],
        (None, requested) => requested.to_vec(),
    };
    for ranks in requested {
        settings.check(ranks)?;
        if !worlds.contains(&ranks) {
            worlds.push(ranks);
        }
    }
    check_file("--json", arguments.json.as_deref())?;
    Ok(PreparedBench {
        settings,
        worlds,
        machine: Machine::here(),
        python: arguments.python.clone().into_os_string(),
        reasons: arguments.reasons,
    })
}

/// Parses names and removes repetitions.
fn list<T: FromStr<Err = BenchError> + PartialEq>(names: &[String]) -> Result<Vec<T>, BenchError> {
    let mut all = Vec::new();
    for name in names {
        let one = name.trim().parse()?;
        if !all.contains(&one) {
            all.push(one);
        }
    }
    Ok(all)
}

fn known<T: Copy + ToString>(what: &'static str, text: &str, all: &[T]) -> Result<T, BenchError> {
    let found = all.iter().find(|one| one.to_string() == text);
    found.copied().ok_or_else(|| {
        let names: Vec<String> = all.iter().map(ToString::to_string).collect();
        setting(
            what,
            format!("invalid value `{text}`: expected {}", names.join(", ")),
        )
    })
}

/// Returns the limit of memory: at most half of this host's available memory.
fn memory_bytes_max() -> u64 {
    let available = host::available_memory_bytes();
    available.map_or(MEMORY_BYTES_MAX, |bytes| MEMORY_BYTES_MAX.min(bytes / 2))
}

/// Checks that an output file can be written, before a run of minutes.
fn check_file(what: &'static str, path: Option<&Path>) -> Result<(), BenchError> {
    let Some(path) = path else {
        return Ok(());
    };
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    if path.is_dir() {
        return Err(setting(
            what,
            format!("cannot write {}: it is a folder", path.display()),
        ));
    }
    match folder {
        Some(folder) if !folder.is_dir() => {
            let problem = format!("no such folder: {}", folder.display());
            Err(setting(what, problem))
        }
        _ => Ok(()),
    }
}

fn setting(what: &'static str, problem: String) -> BenchError {
    BenchError::Setting { what, problem }
}
