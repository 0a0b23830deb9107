//! [`Settings`]: the specification of the measurements, as the command passes it to the workers.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ronde_core::{DType, ReduceOp};
use ronde_schedule::{Algorithm, Hosts};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::operation::{OperationKind, OperationShape};

/// The transport of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchTransport {
    /// The automatic choice of a group.
    Auto,
    /// Memory that is mapped by all ranks of a host.
    SharedMemory,
    /// Plain TCP over loopback.
    Tcp,
    /// TLS 1.3 over loopback, with certificates created for this run.
    Tls,
}

impl BenchTransport {
    /// All transports.
    pub const ALL: [Self; 4] = [Self::Auto, Self::SharedMemory, Self::Tcp, Self::Tls];

    /// Returns the name used in arguments, tables and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::SharedMemory => "shared_memory",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        }
    }
}

/// The memory of the buffers of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BufferMemory {
    /// Memory that the group allocates: where memory is shared, other ranks can read it in place.
    Group,
    /// Ordinary memory of the process.
    Any,
}

impl BufferMemory {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Group, Self::Any];

    /// Returns the name used in arguments, tables and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Any => "any",
        }
    }
}

/// A competitor that is measured in the same run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Competitor {
    /// Gloo, through PyTorch.
    Gloo,
    /// The MPI whose `mpirun` is first in the path.
    Mpi,
    /// A plain loop that reads, adds and writes the same bytes: the lower bound of a sum in memory.
    Loop,
}

impl Competitor {
    /// All competitors.
    pub const ALL: [Self; 3] = [Self::Gloo, Self::Mpi, Self::Loop];

    /// Returns whether it runs in separate processes, under mpirun.
    #[must_use]
    pub fn is_foreign(self) -> bool {
        self != Self::Loop
    }

    /// Returns the name used in arguments, tables and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gloo => "gloo",
            Self::Mpi => "mpi",
            Self::Loop => "loop",
        }
    }
}

macro_rules! named {
    ($type:ty, $what:literal) => {
        impl FromStr for $type {
            type Err = BenchError;

            fn from_str(text: &str) -> Result<Self, BenchError> {
                let found = Self::ALL.into_iter().find(|one| one.name() == text);
                found.ok_or_else(|| unknown($what, text, &Self::ALL.map(Self::name)))
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
named!(BenchTransport, "--transports");
named!(BufferMemory, "--memory");
named!(Competitor, "--against");

fn unknown(what: &'static str, text: &str, known: &[&str]) -> BenchError {
    let known = known.join(", ");
    BenchError::Setting {
        what,
        problem: format!("invalid value `{text}`: expected {known}"),
    }
}

/// A requested algorithm, or the automatic choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Preference(pub Option<Algorithm>);

impl FromStr for Preference {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        if text == "auto" {
            return Ok(Self(None));
        }
        text.parse().map(|found| Self(Some(found))).map_err(|_| {
            let mut known = vec!["auto"];
            known.extend(Algorithm::ALL.iter().map(|algorithm| algorithm.name()));
            unknown("--algorithms", text, &known)
        })
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.map_or("auto", Algorithm::name))
    }
}

impl TryFrom<String> for Preference {
    type Error = BenchError;

    fn try_from(text: String) -> Result<Self, BenchError> {
        text.parse()
    }
}

impl From<Preference> for String {
    fn from(preference: Preference) -> Self {
        preference.to_string()
    }
}

/// The specification of the measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The operations, in this order.
    pub operations: Vec<OperationKind>,
    /// The sizes in bytes, increasing.
    pub sizes: Vec<usize>,
    /// The algorithms, where an operation has several.
    pub algorithms: Vec<Preference>,
    /// The transports.
    pub transports: Vec<BenchTransport>,
    /// The memory of the buffers, where it makes a difference.
    pub memories: Vec<BufferMemory>,
    /// The type of the elements.
    pub dtype: DType,
    /// The operator of the reductions.
    pub op: ReduceOp,
    /// The number of turns of each case.
    pub rounds: usize,
    /// The duration of a turn in seconds.
    pub budget_s: f64,
    /// The simulated number of hosts, for the hierarchical algorithm; in fact all ranks are on one.
    pub hosts: usize,
    /// The seed of the random data.
    pub seed: u64,
    /// The maximum total size of all ranks' buffers in bytes.
    pub memory_bytes_max: u64,
    /// The competitors.
    pub against: Vec<Competitor>,
}

impl Settings {
    /// Checks the settings that can be checked before anything is started, for `ranks` ranks.
    ///
    /// # Errors
    /// [`BenchError::Setting`].
    pub fn check(&self, ranks: usize) -> Result<(), BenchError> {
        let refuse = |what, problem: String| Err(BenchError::Setting { what, problem });
        if !(2..=256).contains(&ranks) {
            return refuse(
                "--workers",
                format!("invalid value {ranks}: expected 2 to 256"),
            );
        }
        if !(self.budget_s > 0.0 && self.budget_s <= 60.0) {
            let budget = self.budget_s;
            return refuse(
                "--budget",
                format!("invalid value {budget}: expected 0 to 60 seconds"),
            );
        }
        if !(1..=1000).contains(&self.rounds) {
            return refuse(
                "--rounds",
                format!("invalid value {}: expected 1 to 1000", self.rounds),
            );
        }
        if self.hosts == 0 || self.hosts > ranks {
            return refuse("--hosts", format!("{} for {ranks} ranks", self.hosts));
        }
        if let [kind] = *self.operations {
            let shape = OperationShape::new(kind, self.op, self.dtype, ranks, 8);
            if let Some(problem) = shape.refusal() {
                return refuse("--dtype and --op", problem);
            }
        }
        if !self.against.is_empty() && !self.competes() {
            return refuse(
                "--against",
                "competitors support only all_reduce of f32 with the sum".to_owned(),
            );
        }
        let most = self.buffer_bytes(ranks, self.largest(), 1);
        if most > self.memory_bytes_max {
            let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            return refuse(
                "--sizes",
                format!(
                    "{ranks} ranks need {:.1} GiB for their buffers, the limit is {:.1} GiB; measure \
                     smaller sizes, fewer ranks or fewer cases at once",
                    gib(most),
                    gib(self.memory_bytes_max)
                ),
            );
        }
        Ok(())
    }

    fn largest(&self) -> usize {
        self.sizes.last().copied().unwrap_or(0)
    }

    /// Returns whether Gloo or Open MPI are measured as well.
    #[must_use]
    pub fn competes(&self) -> bool {
        self.operations.contains(&OperationKind::AllReduce)
            && self.dtype == DType::F32
            && self.op == ReduceOp::Sum
    }

    /// Returns the total size of all ranks' buffers in bytes when each case uses `turns` of them in
    /// rotation: in addition to these, the input, the reference, a checked one, and the memory of
    /// an operation while it runs.
    pub(crate) fn buffer_bytes(&self, ranks: usize, bytes: usize, turns: usize) -> u64 {
        let shared =
            |t: &&BenchTransport| matches!(t, BenchTransport::Auto | BenchTransport::SharedMemory);
        let in_groups = if self.memories.contains(&BufferMemory::Group) {
            self.transports.iter().filter(shared).count()
        } else {
            0
        };
        let foreign = usize::from(self.against.iter().any(|one| one.is_foreign()));
        let plain = usize::from(self.against.contains(&Competitor::Loop));
        let rings = (1 + in_groups) * (turns + 1) + foreign * (turns + 3) + plain * turns;
        (ranks as u64) * (bytes as u64) * (rings as u64 + 4)
    }

    /// Returns the host of each rank, as specified to the groups.
    #[must_use]
    pub fn layout(&self, ranks: usize) -> Hosts {
        let names: Vec<usize> = (0..ranks).map(|rank| rank * self.hosts / ranks).collect();
        Hosts::new(&names)
    }
}

/// The task of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchTask {
    /// The settings.
    pub settings: Settings,
    /// The socket to which rank 0 reports.
    pub socket: PathBuf,
    /// The size of the last-level cache in bytes; 0 when unknown.
    pub cache_bytes: u64,
}

impl BenchTask {
    /// Encodes the task as text, for an assignment.
    ///
    /// # Errors
    /// [`BenchError::Channel`] for a path that is not valid text.
    pub fn encode(&self) -> Result<String, BenchError> {
        serde_json::to_string(self).map_err(|error| BenchError::channel("encode the task", error))
    }

    /// Decodes the text of [`BenchTask::encode`].
    ///
    /// # Errors
    /// [`BenchError::Channel`] for other text.
    pub fn decode(text: &str) -> Result<Self, BenchError> {
        serde_json::from_str(text).map_err(|error| BenchError::channel("decode the task", error))
    }
}

/// Settings of a small run, for tests.
#[cfg(test)]
pub(crate) fn small() -> Settings {
    Settings {
        operations: vec![OperationKind::AllReduce],
        sizes: vec![8, 4096],
        algorithms: vec![Preference(None)],
        transports: vec![BenchTransport::Auto],
        memories: BufferMemory::ALL.to_vec(),
        dtype: DType::F32,
        op: ReduceOp::Sum,
        rounds: 2,
        budget_s: 0.01,
        hosts: 1,
        seed: 1,
        memory_bytes_max: 1 << 30,
        against: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(ranks: usize, change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = small();
        change(&mut settings);
        settings.check(ranks).unwrap_err().to_string()
    }

    #[test]
    fn invalid_settings_are_reported_by_name() {
        small().check(2).unwrap();
        assert!(refused(1, |_| ()).starts_with("--workers: invalid value 1"));
        assert!(refused(2, |s| s.budget_s = f64::NAN).starts_with("--budget"));
        assert!(refused(2, |s| s.rounds = 0).starts_with("--rounds"));
        assert!(refused(2, |s| s.hosts = 3).starts_with("--hosts"));
        assert!(refused(2, |s| s.op = ReduceOp::And).contains("bitwise and needs integers"));
        let against = |s: &mut Settings| {
            s.against = Competitor::ALL.to_vec();
            s.dtype = DType::F64;
        };
        assert!(refused(2, against).starts_with("--against"));
        let huge = |s: &mut Settings| s.sizes = vec![256 << 20];
        assert!(refused(4, huge).contains("GiB for their buffers, the limit is 1.0 GiB"));
    }

    #[test]
    fn tasks_are_read_back() {
        let mut settings = small();
        settings.algorithms = vec![Preference(None), Preference(Some(Algorithm::Ring))];
        let task = BenchTask {
            settings,
            socket: "/tmp/x".into(),
            cache_bytes: 7,
        };
        let text = task.encode().unwrap();
        assert!(text.contains("[\"auto\",\"ring\"]"), "{text}");
        assert_eq!(BenchTask::decode(&text).unwrap(), task);
        assert!(BenchTask::decode("{}").is_err());
    }

    #[test]
    fn unknown_names_are_reported_with_the_valid_ones() {
        for transport in BenchTransport::ALL {
            assert_eq!(
                transport.name().parse::<BenchTransport>().unwrap(),
                transport
            );
        }
        let error = "udp".parse::<BenchTransport>().unwrap_err().to_string();
        assert_eq!(
            error,
            "--transports: invalid value `udp`: expected auto, shared_memory, tcp, tls"
        );
        let error = "fast".parse::<Preference>().unwrap_err().to_string();
        assert!(error.contains("expected auto, driver, ring"), "{error}");
    }

    #[test]
    fn hosts_are_runs_of_ranks() {
        let mut settings = small();
        settings.hosts = 2;
        let hosts = settings.layout(5);
        assert_eq!(
            (hosts.members(0), hosts.members(1)),
            (&[0, 1, 2][..], &[3, 4][..])
        );
        assert!(hosts.are_contiguous());
    }
}
