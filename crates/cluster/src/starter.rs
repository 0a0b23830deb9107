//! [`StartDecision`]: whether another launcher has started this process, and its rank and job, by its environment
//! variables. `table.rs` has the variables of all launchers and platforms; this file decides, without I/O.
//!
//! Launchers may start each other, such as srun torchrun. The closest one to this process has assigned its rank; launchers
//! at the same distance, and variables without a launcher, must agree with it. A launcher that has started one process
//! only leaves the workers to ronde.

use std::ffi::OsString;

use ronde_core::{Rank, WorldSize};

use crate::error::ClusterError;
use crate::fixed_member::FixedRank;
use crate::variables::{MASTER_ADDR, MASTER_PORT, RONDE_TOKEN};

mod ancestor;
mod pmi;
mod reading;
mod table;

pub use ancestor::launcher_process;
pub use pmi::{exchange_by_pmi, pmi_socket};
pub use table::{RONDE_RENDEZVOUS, RONDE_STARTED_BY};

use reading::{Reading, Texts};
pub use table::PMI_FD;
use table::{Nesting, STARTERS, Starter, TORCH};

/// The name under which a caller passes the number of the process that has started the ranks of this host, as
/// [`launcher_process`] returns it. It is not a variable.
pub const LAUNCHER_PROCESS: &str = "the process of the launcher";
/// The value of [`RONDE_STARTED_BY`] with which ronde starts the workers.
const NO_STARTER: &str = "none";
/// The first port that is derived from the name of a job, and how many there are. They are below the ports that systems
/// give to outgoing connections.
const DERIVED_PORTS: (u16, u16) = (20_000, 12_000);

/// A value that was taken from the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFinding {
    /// Its kind, such as `rank`.
    pub field: &'static str,
    /// The value.
    pub value: String,
    /// The variables that have it, or the reason for it.
    pub from: String,
}

/// How this process was started, and why ronde thinks so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartDecision {
    /// The rank of this process, if another launcher has started several.
    pub rank: Option<FixedRank>,
    /// The launcher or platform, for messages.
    pub starter: Option<&'static str>,
    /// Whether the launcher is Slurm, whose names of nodes need not be names of hosts.
    pub is_slurm: bool,
    /// Whether the address of the rank is that of this process, and [`exchange_by_pmi`] returns that of rank 0.
    pub exchanges: bool,
    /// The variables of the number of workers.
    pub world_size_from: String,
    /// The values.
    pub findings: Vec<StartFinding>,
    /// Sentences about other findings and why they do not count.
    pub notes: Vec<String>,
}

/// A starter that is present, with its numbers.
struct PresentStarter {
    starter: &'static Starter,
    rank: Option<(String, u32)>,
    world_size: Option<(String, u32)>,
}

impl StartDecision {
    /// Decides by the variables of a process. `variable` returns the contents of a variable, of a file whose path it gets,
    /// and for [`LAUNCHER_PROCESS`] the number of that process.
    ///
    /// # Errors
    /// Returns [`ClusterError::Environment`] if variables are invalid, missing or contradict each other.
    pub fn of(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, ClusterError> {
        let texts = |name: &str| variable(name)?.into_string().ok();
        let mut candidates = candidates(&texts)?;
        let chosen = texts(RONDE_STARTED_BY).filter(|name| !name.is_empty());
        if let Some(name) = &chosen {
            choose(&mut candidates, name)?;
        }
        let complete = |found: &&PresentStarter| found.rank.is_some() && found.world_size.is_some();
        let Some(closest) = candidates.iter().find(complete) else {
            return Self::none(&candidates, chosen.as_deref());
        };
        if chosen.is_none() {
            agree(closest, &candidates)?;
        }
        closest.decide(&candidates, &texts)
    }

    /// Returns the decision for a process that no other launcher has started.
    fn none(candidates: &[PresentStarter], chosen: Option<&str>) -> Result<Self, ClusterError> {
        for found in candidates {
            let starter = found.starter;
            let (has, missing, meaning) = match (&found.rank, &found.world_size) {
                (Some((name, _)), None) => {
                    (name.as_str(), starter.world_size, "a number of workers")
                }
                (None, Some((name, _))) => (name.as_str(), starter.rank, "a rank"),
                _ if starter.nesting == Nesting::Explicit => {
                    (RONDE_RENDEZVOUS, starter.rank, "a rank")
                }
                _ => continue,
            };
            let missing = names_of(missing);
            return Err(invalid(
                format!("{has} is set but {missing}, {meaning}, is not"),
                format!(
                    "set {missing}, unset {has}, or set {RONDE_STARTED_BY}={NO_STARTER} for a run of this process alone"
                ),
            ));
        }
        let mut notes: Vec<String> = candidates
            .iter()
            .map(|found| {
                let title = found.starter.title;
                format!("{title}: its variables name no rank, so it has started one process")
            })
            .collect();
        if chosen == Some(NO_STARTER) {
            notes.push(format!("{RONDE_STARTED_BY} is `{NO_STARTER}`"));
        }
        Ok(Self {
            rank: None,
            starter: None,
            is_slurm: false,
            exchanges: false,
            world_size_from: String::new(),
            findings: Vec::new(),
            notes,
        })
    }

    /// Returns the explanation for a person, without a line break at the end.
    #[must_use]
    pub fn explain(&self) -> String {
        let mut lines = Vec::new();
        match (&self.rank, self.starter) {
            (Some(rank), Some(starter)) => lines.push(format!(
                "started by {starter}: rank {} of {}",
                rank.rank, rank.world_size
            )),
            (_, Some(starter)) => lines.push(format!(
                "started by {starter} as its only process: `ronde train` starts the workers of the run file"
            )),
            _ => lines.push(
                "not started by another launcher: `ronde train` starts the workers of the run file"
                    .to_owned(),
            ),
        }
        let width = self.findings.iter().map(|found| found.value.len()).max();
        let width = width.unwrap_or_default();
        lines.extend(self.findings.iter().map(|found| {
            let StartFinding { field, value, from } = found;
            format!("  {field:<18}{value:<width$}  {from}")
        }));
        lines.extend(self.notes.iter().map(|note| format!("  {note}")));
        if self.starter.is_none() && self.notes.is_empty() {
            let titles: Vec<&str> = STARTERS.iter().map(|starter| starter.title).collect();
            lines.push(format!("  looked for: {}", titles.join(", ")));
        }
        lines.join("\n")
    }
}

/// Returns the starters that are present, the closest ones first.
fn candidates(texts: Texts<'_>) -> Result<Vec<PresentStarter>, ClusterError> {
    let is_set = |name: &&str| texts(name).is_some_and(|text| !text.is_empty());
    let mut found = Vec::new();
    for starter in STARTERS {
        if starter.markers.iter().any(|list| list.iter().all(is_set)) {
            found.push(PresentStarter {
                starter,
                rank: number(starter.rank, "a rank", texts)?,
                world_size: number(starter.world_size, "a number of workers", texts)?,
            });
        }
    }
    Ok(found)
}

/// Returns the first number of some readings and its variables.
fn number(
    readings: &[Reading],
    meaning: &str,
    texts: Texts<'_>,
) -> Result<Option<(String, u32)>, ClusterError> {
    let Some((names, value)) = first(readings, texts)? else {
        return Ok(None);
    };
    match value.parse() {
        Ok(number) => Ok(Some((names, number))),
        Err(_) => Err(invalid(
            format!("{names}={value} is not {meaning}"),
            format!("correct or unset {names}"),
        )),
    }
}

/// Returns the first value of some readings and its variables.
fn first(readings: &[Reading], texts: Texts<'_>) -> Result<Option<(String, String)>, ClusterError> {
    for reading in readings {
        let taken = reading.take(texts).map_err(|problem| {
            let help = format!("correct or unset {}", reading.names());
            invalid(problem, help)
        })?;
        if let Some(value) = taken {
            return Ok(Some((reading.names(), value)));
        }
    }
    Ok(None)
}

fn names_of(readings: &[Reading]) -> String {
    readings.first().map(Reading::names).unwrap_or_default()
}

fn invalid(problem: String, help: String) -> ClusterError {
    ClusterError::Environment { problem, help }
}

/// Keeps the starter that the user has chosen.
fn choose(candidates: &mut Vec<PresentStarter>, name: &str) -> Result<(), ClusterError> {
    let known = STARTERS.iter().any(|starter| starter.name == name) || name == NO_STARTER;
    if !known {
        let names: Vec<&str> = STARTERS.iter().map(|starter| starter.name).collect();
        return Err(invalid(
            format!("invalid {RONDE_STARTED_BY} `{}`", name.escape_debug()),
            format!("expected {NO_STARTER}, {}", names.join(", ")),
        ));
    }
    candidates.retain(|found| found.starter.name == name);
    if candidates.is_empty() && name != NO_STARTER {
        return Err(invalid(
            format!("{RONDE_STARTED_BY} is `{name}`, but none of its variables is set"),
            format!("unset {RONDE_STARTED_BY}, or start this command with that launcher"),
        ));
    }
    Ok(())
}

/// Checks that no other starter contradicts the closest one.
fn agree(closest: &PresentStarter, candidates: &[PresentStarter]) -> Result<(), ClusterError> {
    for other in candidates {
        if !closest.must_agree_with(other) {
            continue;
        }
        for (field, mine, theirs) in [
            (
                "the number of workers",
                &closest.world_size,
                &other.world_size,
            ),
            ("the rank of this process", &closest.rank, &other.rank),
        ] {
            let (Some(mine), Some(theirs)) = (mine, theirs) else {
                continue;
            };
            if mine.1 != theirs.1 {
                let problem = format!(
                    "the environment has two values for {field}: {}={} ({}) and {}={} ({})",
                    mine.0, mine.1, closest.starter.title, theirs.0, theirs.1, other.starter.title
                );
                let help = format!(
                    "unset the variables that do not belong to this run, or set {RONDE_STARTED_BY}={} or \
                     {RONDE_STARTED_BY}={}",
                    closest.starter.name, other.starter.name
                );
                return Err(invalid(problem, help));
            }
        }
    }
    Ok(())
}

impl PresentStarter {
    /// Returns whether the same processes are meant: one of the two is not a launcher, or none has started the other.
    fn must_agree_with(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.starter, other.starter);
        if mine.name == theirs.name {
            return false;
        }
        // torchrun sets these variables itself.
        let is_torchruns = mine.nesting == Nesting::Inner && theirs.world_size_is_torchs();
        let has_no_launcher = mine.nesting == Nesting::Explicit || theirs.name == TORCH;
        !is_torchruns && (has_no_launcher || mine.nesting == theirs.nesting)
    }

    /// Decides that this starter has assigned the rank.
    fn decide(&self, candidates: &[Self], texts: Texts<'_>) -> Result<StartDecision, ClusterError> {
        let starter = self.starter;
        let (Some((rank_from, rank)), Some((size_from, size))) = (&self.rank, &self.world_size)
        else {
            return StartDecision::none(candidates, None);
        };
        if rank >= size {
            return Err(invalid(
                format!("{rank_from}={rank} does not fit {size_from}={size}"),
                format!("ranks begin at 0; correct {rank_from} or {size_from}"),
            ));
        }
        let mut findings = vec![
            finding("rank", rank, rank_from),
            finding("world size", size, size_from),
        ];
        let local_rank = number(starter.local_rank, "a rank on this host", texts)?;
        let local_size = number(starter.local_world_size, "a number of workers", texts)?;
        for (field, found) in [
            ("rank on host", &local_rank),
            ("ranks on host", &local_size),
        ] {
            findings.extend(
                found
                    .iter()
                    .map(|(from, value)| finding(field, value, from)),
            );
        }
        let mut decision = StartDecision {
            rank: None,
            starter: Some(starter.title),
            is_slurm: starter.nesting == Nesting::Step,
            exchanges: false,
            world_size_from: size_from.clone(),
            findings,
            notes: self.notes(candidates),
        };
        let world_size = match WorldSize::new(*size) {
            Some(several) if *size > 1 || starter.nesting == Nesting::Explicit => several,
            _ => return Ok(decision),
        };
        let is_local = local_size.is_some_and(|(_, local)| local == *size);
        let exchanged = match is_local {
            true => None,
            false => self.exchanged(candidates, texts)?,
        };
        decision.exchanges = exchanged.is_some();
        let local = is_local.then(|| {
            let from = "all ranks are on this host".to_owned();
            (from, "127.0.0.1".to_owned())
        });
        let (rendezvous, from) = self.rendezvous(candidates, local.or(exchanged), texts)?;
        decision.findings.push(match decision.exchanges {
            true => finding("rendezvous", "exchanged by PMI", PMI_FD),
            false => finding("rendezvous", &rendezvous, &from),
        });
        let job = self.job(candidates, texts)?;
        if let Some((from, job)) = &job {
            decision.findings.push(finding("job", job, from));
        }
        decision.rank = Some(FixedRank {
            job: job.map_or_else(|| "job".to_owned(), |(_, job)| job),
            rank: Rank(*rank),
            world_size,
            rendezvous,
            token: texts(RONDE_TOKEN).unwrap_or_default(),
        });
        Ok(decision)
    }

    /// Returns the name of this host and its variable, if only an exchange shows which one is that of rank 0.
    fn exchanged(
        &self,
        candidates: &[Self],
        texts: Texts<'_>,
    ) -> Result<Option<(String, String)>, ClusterError> {
        let is_set = |name: &str| texts(name).is_some_and(|text| !text.is_empty());
        let is_known = is_set(RONDE_RENDEZVOUS) || self.host(candidates, texts).is_ok();
        match is_set(PMI_FD) && !is_known {
            true => first(self.starter.own_host, texts),
            false => Ok(None),
        }
    }

    /// Returns the address of rank 0 and where it is from. `known` is the host where no variable has to name it, and why.
    fn rendezvous(
        &self,
        candidates: &[Self],
        known: Option<(String, String)>,
        texts: Texts<'_>,
    ) -> Result<(String, String), ClusterError> {
        let explicit: &[Reading] = &[Reading::HostOf(RONDE_RENDEZVOUS)];
        if let Some((from, _)) = first(explicit, texts)? {
            return Ok((texts(RONDE_RENDEZVOUS).unwrap_or_default(), from));
        }
        let (host_from, host) = match known {
            Some(known) => known,
            None => self.host(candidates, texts)?,
        };
        let is_torchrun = self.starter.nesting == Nesting::Inner;
        let master: &[Reading] = match is_torchrun {
            true => &[],
            false => &[Reading::Value(MASTER_PORT)],
        };
        let own = first(self.starter.port, texts)?;
        let port = match own {
            Some(port) => Some(port),
            None => first(master, texts)?,
        };
        let (port_from, port) = match port {
            Some((from, text)) => match text.parse::<u16>() {
                Ok(port) if port > 0 => (from, port),
                _ => {
                    let problem = format!("{from}={text} is not a port");
                    return Err(invalid(problem, format!("correct or unset {from}")));
                }
            },
            None => self.derived_port(candidates, &host, texts),
        };
        let address = match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let from = match host_from == port_from {
            true => host_from,
            false => format!("{host_from}; port: {port_from}"),
        };
        Ok((address, from))
    }

    /// Returns the host of rank 0 and its variable.
    fn host(
        &self,
        candidates: &[Self],
        texts: Texts<'_>,
    ) -> Result<(String, String), ClusterError> {
        let own = self.starter.host;
        let master: &[Reading] = &[Reading::Value(MASTER_ADDR)];
        let others = candidates.iter().map(|other| other.starter.host);
        for readings in [master, own].into_iter().chain(others) {
            if let Some(found) = first(readings, texts)? {
                return Ok(found);
            }
        }
        let problem = format!(
            "no variable names the host of rank 0, and the ranks of {} may be on several hosts",
            self.starter.title
        );
        let help = format!("set {RONDE_RENDEZVOUS}=HOST:PORT for all ranks");
        Err(invalid(problem, help))
    }

    /// Returns a port that is the same for all ranks of this job, and very likely another one for another job.
    fn derived_port(&self, candidates: &[Self], host: &str, texts: Texts<'_>) -> (String, u16) {
        let starters = [self.starter].into_iter();
        let starters = starters.chain(candidates.iter().map(|other| other.starter));
        let tag = |starter: &Starter| {
            let values = starter
                .tags
                .iter()
                .filter_map(|name| Some((*name, texts(name)?)));
            let values: Vec<(&str, String)> = values.collect();
            (!values.is_empty()).then_some(values)
        };
        let tags = starters.map(tag).find_map(|tags| tags).unwrap_or_default();
        let mut hash = blake3::Hasher::new();
        hash.update(host.as_bytes());
        for (name, value) in &tags {
            hash.update(name.as_bytes());
            hash.update(value.as_bytes());
        }
        let bytes = hash.finalize();
        let number = u16::from_le_bytes([bytes.as_bytes()[0], bytes.as_bytes()[1]]);
        let names: Vec<&str> = tags.iter().map(|(name, _)| *name).collect();
        let from = match names.is_empty() {
            true => "derived from the host".to_owned(),
            false => format!("derived from {}", names.join(", ")),
        };
        (from, DERIVED_PORTS.0 + number % DERIVED_PORTS.1)
    }

    /// Returns the name of the job and its variable.
    fn job(
        &self,
        candidates: &[Self],
        texts: Texts<'_>,
    ) -> Result<Option<(String, String)>, ClusterError> {
        let ronde = STARTERS
            .iter()
            .filter(|known| known.nesting == Nesting::Explicit);
        let others = candidates.iter().map(|other| other.starter);
        for starter in ronde.chain([self.starter]).chain(others) {
            if let Some(found) = first(starter.job, texts)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns sentences about the other starters.
    fn notes(&self, candidates: &[Self]) -> Vec<String> {
        let others = candidates
            .iter()
            // Those that read the same variables add nothing.
            .filter(|other| other.rank.is_none() || other.rank != self.rank)
            .filter(|other| other.starter.name != self.starter.name);
        let note = |other: &Self| {
            let title = other.starter.title;
            match (&other.rank, &other.world_size) {
                (Some((rank_from, rank)), Some((size_from, size))) => {
                    let reason = match self.must_agree_with(other) {
                        true => "agrees",
                        false => "is not used, because it is further away from this process",
                    };
                    format!(
                        "also present: {title} ({rank_from}={rank}, {size_from}={size}); it {reason}"
                    )
                }
                _ => format!("also present: {title}, which names no rank"),
            }
        };
        others.map(note).collect()
    }
}

fn finding(field: &'static str, value: &(impl ToString + ?Sized), from: &str) -> StartFinding {
    StartFinding {
        field,
        value: value.to_string(),
        from: from.to_owned(),
    }
}

#[cfg(test)]
mod tests;
