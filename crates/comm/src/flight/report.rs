//! [`merge_report`]: merges the records of several ranks into sentences about which rank waits for which.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use ronde_core::units::count;

use super::record::{FlightRecord, OperationRecord};

/// Maximum number of messages and of absent ranks that are listed.
const LISTED_MAX: usize = 8;

/// Describes which rank is missing in which operation, group by group.
///
/// Records may be in any order, from several groups, and incomplete. Pure: it only reads its
/// argument. Times are compared only within one rank's record.
#[must_use]
pub fn merge_report(records: &[FlightRecord]) -> String {
    let mut groups: BTreeMap<_, BTreeMap<u32, &FlightRecord>> = BTreeMap::new();
    for record in records {
        let key = (&record.job, &record.group, record.generation);
        groups.entry(key).or_default().insert(record.rank.0, record);
    }
    if groups.is_empty() {
        return "no records\n".to_owned();
    }
    let mut report = String::new();
    for ((_, group, generation), records) in groups {
        let size = records.values().map(|record| record.size).max();
        let size = size.unwrap_or(0);
        let word = if size == 1 { "rank" } else { "ranks" };
        let merged = MergedRecords { records, size };
        let mut lines = vec![format!(
            "group {group}, generation {generation}, {size} {word}{}",
            merged.members()
        )];
        merged.collectives(&mut lines);
        merged.messages(&mut lines);
        merged.cut(&mut lines);
        merged.failures(&mut lines);
        for (place, line) in lines.iter().enumerate() {
            let indent = if place == 0 { "" } else { "  " };
            // Writing to a string cannot fail.
            let _written = writeln!(report, "{indent}{line}");
        }
    }
    report
}

/// The records of one group by rank.
struct MergedRecords<'a> {
    records: BTreeMap<u32, &'a FlightRecord>,
    size: u32,
}

impl MergedRecords<'_> {
    /// Returns the ranks of a sub-group in the whole group, in its order.
    fn members(&self) -> String {
        let members = self.records.values().map(|record| &record.members);
        let Some(members) = members.max_by_key(|members| members.len()) else {
            return String::new();
        };
        let mut listed = members
            .iter()
            .take(LISTED_MAX)
            .map(|rank| rank.0.to_string());
        match (members.len(), listed.next()) {
            (_, None) => String::new(),
            (count, Some(first)) => {
                let listed = listed.fold(first, |text, rank| text + ", " + &rank);
                let more = if count > LISTED_MAX { ", ..." } else { "" };
                format!(" (ranks {listed}{more} of all)")
            }
        }
    }

    fn collectives(&self, lines: &mut Vec<String>) {
        let Some(sequence) = self.in_question() else {
            lines.push(match self.last_of_all() {
                Some(last) => format!("no collective is running; the last was {}", title(last)),
                None => "no collective was called".to_owned(),
            });
            return self.silent(None, lines);
        };
        let entered: BTreeMap<u32, &OperationRecord> = self
            .records
            .iter()
            .filter_map(|(&rank, record)| Some((rank, of_sequence(record, sequence)?)))
            .collect();
        let Some(example) = entered.values().next() else {
            return;
        };
        let waiting: Vec<u32> = entered
            .iter()
            .filter(|(_, operation)| is_open(operation))
            .map(|(&rank, _)| rank)
            .collect();
        let waited = waiting.iter().map(|rank| self.waited(*rank, entered[rank]));
        let waited = waited.fold(0.0, f64::max);
        let wait = if waiting.is_empty() {
            format!(
                "{} finished it",
                ranks(entered.keys().copied(), "has", "have")
            )
        } else {
            let who = ranks(waiting.iter().copied(), "has", "have");
            format!("{who} waited {waited:.1} s")
        };
        let missing: Vec<u32> = self
            .records
            .iter()
            .filter(|(_, record)| !went_past(record, sequence))
            .map(|(&rank, _)| rank)
            .collect();
        for rank in &missing {
            let before = self.before(*rank);
            let what = title(example);
            lines.push(format!(
                "rank {rank} has not entered {what}; {wait}; {before}"
            ));
        }
        self.silent(Some((title(example), wait)), lines);
        self.disagreement(sequence, &entered, lines);
        if missing.is_empty() && self.records.len() == self.size as usize {
            self.all_inside(example, &entered, waited, lines);
        }
    }

    /// Returns the first collective that has not ended on all ranks.
    fn in_question(&self) -> Option<u64> {
        let open = self.records.values().filter_map(|record| {
            let open = collectives(record).filter(|operation| is_open(operation));
            open.filter_map(|operation| operation.sequence).min()
        });
        if let Some(first) = open.min() {
            return Some(first);
        }
        // Complete on all ranks that called it, but not called on all.
        let lasts = self.records.values().map(|record| next_sequence(record));
        let (min, max) = (lasts.clone().min()?, lasts.max()?);
        (min < max).then_some(min)
    }

    fn last_of_all(&self) -> Option<&OperationRecord> {
        let all = self.records.values().flat_map(|record| collectives(record));
        all.max_by_key(|operation| operation.sequence)
    }

    /// Returns the seconds from the call to the failure, or to when the record was taken.
    fn waited(&self, rank: u32, operation: &OperationRecord) -> f64 {
        let taken = self.records.get(&rank).map_or(0.0, |record| record.taken_s);
        operation.ended_s.unwrap_or(taken) - operation.issued_s
    }

    fn before(&self, rank: u32) -> String {
        let record = self.records.get(&rank);
        let last = record.and_then(|record| Some((record, collectives(record).last()?)));
        match last {
            None => "it has called no operation yet".to_owned(),
            Some((record, last)) => {
                let ago = record.taken_s - last.ended_s.unwrap_or(record.taken_s);
                format!(
                    "its last operation was {}, finished {ago:.1} s before",
                    short(last)
                )
            }
        }
    }

    /// Describes the ranks without a record.
    fn silent(&self, stuck: Option<(String, String)>, lines: &mut Vec<String>) {
        let absent = (0..self.size).filter(|rank| !self.records.contains_key(rank));
        for rank in absent.take(LISTED_MAX) {
            let heard = self
                .records
                .values()
                .flat_map(|record| collectives(record))
                .filter(|operation| operation.arrivals.iter().any(|a| a.peer.0 == rank))
                .max_by_key(|operation| operation.sequence);
            let sign = match heard {
                Some(operation) => format!("its last bytes arrived in {}", short(operation)),
                None => "no rank has received anything from it".to_owned(),
            };
            let stuck = stuck.as_ref().map_or(String::new(), |(title, wait)| {
                format!("; in {title} {wait}")
            });
            lines.push(format!("there is no record of rank {rank}; {sign}{stuck}"));
        }
        let absent = (self.size as usize).saturating_sub(self.records.len());
        if absent > LISTED_MAX {
            let more = absent - LISTED_MAX;
            lines.push(format!("there is no record of {more} more ranks"));
        }
    }

    fn disagreement(
        &self,
        sequence: u64,
        entered: &BTreeMap<u32, &OperationRecord>,
        lines: &mut Vec<String>,
    ) {
        let mut calls: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for (&rank, operation) in entered {
            calls.entry(&operation.call).or_default().insert(rank);
        }
        if calls.len() > 1 {
            let calls = calls.into_iter().map(|(call, by)| {
                let by = ranks(by.into_iter(), "", "");
                format!("{} called {call}", by.trim_end())
            });
            let calls = calls.collect::<Vec<_>>().join("; ");
            lines.push(format!(
                "the ranks disagree about operation {sequence}: {calls}"
            ));
        }
    }

    fn all_inside(
        &self,
        example: &OperationRecord,
        entered: &BTreeMap<u32, &OperationRecord>,
        waited: f64,
        lines: &mut Vec<String>,
    ) {
        let what = title(example);
        lines.push(format!(
            "all ranks have entered {what}; the longest wait is {waited:.1} s"
        ));
        for (rank, operation) in entered.iter().filter(|(_, operation)| is_open(operation)) {
            let heard: Vec<u32> = operation.arrivals.iter().map(|a| a.peer.0).collect();
            let line = if heard.is_empty() {
                format!("rank {rank} has received nothing in it")
            } else {
                let heard = ranks(heard.into_iter(), "", "");
                format!(
                    "rank {rank} has received data from {} in it",
                    heard.trim_end()
                )
            };
            lines.push(line);
        }
    }

    fn messages(&self, lines: &mut Vec<String>) {
        let open = self.records.iter().flat_map(|(rank, record)| {
            let messages = record.operations.iter();
            let open = messages.filter(|o| o.sequence.is_none() && is_open(o));
            open.map(move |operation| (*rank, operation))
        });
        let open: Vec<_> = open.collect();
        for (rank, operation) in open.iter().take(LISTED_MAX) {
            let waited = self.waited(*rank, operation);
            let peer = operation.peer.unwrap_or_default();
            let tag = operation.tag.unwrap_or(0);
            let what = if operation.kind == "send" {
                format!("is sending to rank {peer}")
            } else {
                format!("waits for a message from rank {peer}")
            };
            let size = size(operation);
            lines.push(format!(
                "rank {rank} {what} (tag {tag}, {size}) for {waited:.1} s"
            ));
        }
        if open.len() > LISTED_MAX {
            let more = open.len() - LISTED_MAX;
            lines.push(format!("{more} more messages are waiting"));
        }
    }

    /// Describes which hosts did not acknowledge packets. A rank is cut off if this is so between it and
    /// more than half of all ranks.
    fn cut(&self, lines: &mut Vec<String>) {
        let mut ways: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (&rank, record) in &self.records {
            for peer in &record.unanswered {
                ways.entry(rank).or_default().insert(peer.0);
                ways.entry(peer.0).or_default().insert(rank);
            }
        }
        let is_cut_off = |others: &BTreeSet<u32>| 2 * others.len() > self.size as usize;
        let mut named = BTreeSet::new();
        let told =
            |others: &BTreeSet<u32>| ranks(others.iter().copied(), "", "").trim_end().to_owned();
        for (rank, others) in ways.iter().filter(|(_, others)| is_cut_off(others)) {
            if named.len() == LISTED_MAX {
                break;
            }
            named.insert(*rank);
            let others = told(others);
            lines.push(format!(
                "rank {rank} is cut off: packets between it and {others} are not acknowledged"
            ));
        }
        for (rank, others) in ways.iter().take(LISTED_MAX) {
            let is_rest =
                |peer: &u32| peer > rank && !named.contains(rank) && !named.contains(peer);
            let rest: BTreeSet<u32> = others.iter().copied().filter(is_rest).collect();
            if !rest.is_empty() {
                let rest = told(&rest);
                lines.push(format!(
                    "packets between rank {rank} and {rest} are not acknowledged: a path is cut, or a host is down"
                ));
            }
        }
    }

    fn failures(&self, lines: &mut Vec<String>) {
        let mut told: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (&rank, record) in &self.records {
            if let Some(failure) = &record.failure {
                told.entry(failure).or_default().push(rank);
            }
        }
        for (failure, by) in told {
            lines.push(format!(
                "{} failed: {failure}",
                ranks(by.into_iter(), "has", "have")
            ));
        }
    }
}

fn collectives(record: &FlightRecord) -> impl Iterator<Item = &OperationRecord> {
    let operations = record.operations.iter();
    operations.filter(|operation| operation.sequence.is_some())
}

fn of_sequence(record: &FlightRecord, sequence: u64) -> Option<&OperationRecord> {
    collectives(record).find(|operation| operation.sequence == Some(sequence))
}

/// Returns one more than the number of the last collective that was called.
fn next_sequence(record: &FlightRecord) -> u64 {
    let last = collectives(record)
        .filter_map(|operation| operation.sequence)
        .max();
    last.map_or(0, |last| last.saturating_add(1))
}

/// Returns whether a rank has called this collective, even if it is no longer kept.
fn went_past(record: &FlightRecord, sequence: u64) -> bool {
    next_sequence(record) > sequence
}

/// Returns whether it is running or has failed.
fn is_open(operation: &OperationRecord) -> bool {
    operation.ended_s.is_none() || operation.failed
}

/// Returns, for example, `broadcast 811`.
fn short(operation: &OperationRecord) -> String {
    match operation.sequence {
        Some(sequence) => format!("{} {sequence}", operation.kind),
        None => operation.kind.clone(),
    }
}

/// Returns, for example, `all_reduce 812 (f32 x 1,048,576, by ring)`.
fn title(operation: &OperationRecord) -> String {
    if operation.kind == "barrier" {
        return short(operation);
    }
    let by = operation.algorithm.as_ref();
    let by = by.map_or(String::new(), |algorithm| format!(", by {algorithm}"));
    format!("{} ({}{by})", short(operation), size(operation))
}

fn size(operation: &OperationRecord) -> String {
    match operation.len {
        Some(len) => format!("{} x {}", operation.dtype, count(len)),
        None => format!("{} of any length", operation.dtype),
    }
}

/// Returns, for example, `ranks 0, 1, 2 have`; long lists are shortened.
fn ranks(ranks: impl ExactSizeIterator<Item = u32>, has: &str, have: &str) -> String {
    const NAMED: usize = 16;
    let count = ranks.len();
    let names: Vec<String> = ranks.take(NAMED).map(|rank| rank.to_string()).collect();
    let (word, verb) = if count == 1 {
        ("rank", has)
    } else {
        ("ranks", have)
    };
    let more = if count > NAMED {
        format!(" and {} more", count - NAMED)
    } else {
        String::new()
    };
    format!("{word} {}{more} {verb}", names.join(", "))
}
