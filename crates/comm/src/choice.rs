//! [`AlgorithmChoice`]: which algorithm an operation of a group uses, and why; cached, so that lookups are cheap.
//!
//! A choice is made once for a class of lengths. A plain floating-point sum may round differently with another algorithm; training
//! uses only the exact sum.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_core::{Buffer, CollectiveError, Collectives, DType, GroupRank, Operation};
use ronde_schedule::choose::{counts, has_several, seconds_of};
use ronde_schedule::{self as schedule, Algorithm, CostModel, Decision, Hosts};

use crate::frame::{ANY_LEN, Call, CallKind};
use crate::group::ProcessGroup;
use crate::program;

/// Number of elements assumed if not all ranks know the length.
const UNKNOWN_LEN: usize = 1 << 18;
/// Maximum number of cached decisions.
const REMEMBERED_MAX: usize = 4096;
/// Number of classes of lengths per power of two (a power of two).
const CLASSES: u32 = 4;

/// Which algorithm an operation of a group uses, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct AlgorithmChoice {
    /// The algorithm over the group's connections; `None` over shared memory, in a group of one, and
    /// for operations that have one schedule.
    pub algorithm: Option<Algorithm>,
    /// The reason: `direct 182 us, next halving_doubling 240 us (measured)`.
    pub reason: String,
    /// The predicted time. `None` if there is only one way to run the operation, also over shared
    /// memory: nothing is measured or assumed there.
    pub predicted: Option<Duration>,
    /// Whether it runs over shared memory, where each operation has a single implementation.
    pub by_shared_memory: bool,
}

/// A choice that a group has made, for one operation and a range of lengths.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedChoice {
    /// `all_reduce`, `exact_sum`, `reduce`, `broadcast`.
    pub operation: String,
    /// Size of an operand in bytes: from the minimum to one more than the maximum.
    pub bytes: Range<u64>,
    /// The choice; its `predicted` is for the smallest of `bytes`.
    pub choice: AlgorithmChoice,
    /// How often it was used.
    pub times: u64,
}

/// The properties shared by all operations that use one choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct OperationClass {
    kind: CallKind,
    /// Smallest length of the class.
    len: usize,
    element_bytes: usize,
    /// The detail of the call, if the choice depends on it.
    detail: u64,
}

#[derive(Debug, Clone)]
struct RecordedDecision {
    decision: Decision,
    times: u64,
}

#[derive(Debug, Default)]
struct ChoiceTable {
    model: CostModel,
    remembered: HashMap<OperationClass, RecordedDecision>,
}

/// Chooses algorithms for one group; all members must have the same state.
#[derive(Debug)]
pub(crate) struct Chooser {
    preferred: Option<Algorithm>,
    hosts: Arc<Hosts>,
    table: Mutex<ChoiceTable>,
}

impl Chooser {
    pub(crate) fn new(preferred: Option<Algorithm>, hosts: Hosts) -> Self {
        Self {
            preferred,
            hosts: Arc::new(hosts),
            table: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ChoiceTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which members share a host.
    pub(crate) fn hosts(&self) -> &Arc<Hosts> {
        &self.hosts
    }

    /// The costs for the choice.
    pub(crate) fn model(&self) -> CostModel {
        self.lock().model
    }

    /// Chooses by other costs from now on.
    pub(crate) fn set_model(&self, model: CostModel) {
        *self.lock() = ChoiceTable {
            model,
            remembered: HashMap::new(),
        };
    }

    /// The algorithm for a call, which is about to be made.
    pub(crate) fn take(&self, operation: &Operation, call: &Call) -> Algorithm {
        let class = self.class(call);
        let mut table = self.lock();
        if let Some(known) = table.remembered.get_mut(&class) {
            known.times += 1;
            return known.decision.algorithm;
        }
        let decision = self.decide(&table.model, operation, &class);
        let algorithm = decision.algorithm;
        if table.remembered.len() >= REMEMBERED_MAX {
            table.remembered.clear();
        }
        let times = 1;
        let remembered = RecordedDecision { decision, times };
        table.remembered.insert(class, remembered);
        algorithm
    }

    /// What [`Chooser::take`] would answer.
    fn look(&self, operation: &Operation, call: &Call) -> Decision {
        let class = self.class(call);
        let table = self.lock();
        match table.remembered.get(&class) {
            Some(known) => known.decision.clone(),
            None => self.decide(&table.model, operation, &class),
        }
    }

    fn decide(&self, model: &CostModel, operation: &Operation, class: &OperationClass) -> Decision {
        let operation = self.alike(operation);
        let (preferred, hosts) = (self.preferred, &*self.hosts);
        schedule::choose_on(
            model,
            preferred,
            &operation,
            hosts,
            class.len,
            class.element_bytes,
        )
    }

    fn class(&self, call: &Call) -> OperationClass {
        let len = match call.len {
            ANY_LEN => UNKNOWN_LEN,
            len => len as usize,
        };
        let has_root = matches!(call.kind, CallKind::Reduce | CallKind::Broadcast);
        OperationClass {
            kind: call.kind,
            len: class_of(len).start,
            element_bytes: call.dtype.size(),
            detail: if has_root && self.is_flat() {
                0
            } else {
                call.detail
            },
        }
    }

    /// Returns whether the choice is the same for every root.
    fn is_flat(&self) -> bool {
        self.hosts.count() <= 1
    }

    /// Returns the operation that represents its class.
    fn alike(&self, operation: &Operation) -> Operation {
        let root = GroupRank(0);
        match operation {
            Operation::Reduce { op, .. } if self.is_flat() => Operation::Reduce { op: *op, root },
            Operation::Broadcast { .. } if self.is_flat() => Operation::Broadcast { root },
            other => other.clone(),
        }
    }

    fn taken(&self) -> Vec<RecordedChoice> {
        let table = self.lock();
        let mut all: Vec<_> = table.remembered.iter().collect();
        all.sort_by_key(|(class, _)| **class);
        let of = |(class, known): (&OperationClass, &RecordedDecision)| {
            let (lens, element) = (class_of(class.len), class.element_bytes as u64);
            RecordedChoice {
                operation: class.kind.name().to_owned(),
                bytes: lens.start as u64 * element..lens.end as u64 * element,
                choice: AlgorithmChoice {
                    algorithm: Some(known.decision.algorithm),
                    reason: known.decision.reason.clone(),
                    predicted: known.decision.seconds.and_then(duration),
                    by_shared_memory: false,
                },
                times: known.times,
            }
        };
        all.into_iter().map(of).collect()
    }
}

/// Returns the range of lengths that are treated alike.
fn class_of(len: usize) -> Range<usize> {
    if len < 2 * CLASSES as usize {
        return len..len + 1;
    }
    let width = 1 << (len.ilog2() - CLASSES.ilog2());
    let start = len / width * width;
    start..start.saturating_add(width)
}

fn duration(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}

impl ProcessGroup {
    /// Returns how `operation` on operands of `len` elements of `dtype` would run now, and why: the same
    /// on all ranks. `len` is that of the buffer, or of one subtree of an exact sum.
    ///
    /// Sends nothing. Cost: a table lookup, or the schedules of all ranks: some microseconds for few ranks,
    /// some milliseconds for hundreds.
    #[must_use]
    pub fn choice(&self, operation: &Operation, dtype: DType, len: usize) -> AlgorithmChoice {
        let mut choice = AlgorithmChoice {
            algorithm: None,
            reason: "a group of one sends nothing".to_owned(),
            predicted: None,
            by_shared_memory: false,
        };
        if self.size() == 1 {
            return choice;
        }
        let sketch = program::sketch(operation, dtype, len);
        let call = sketch.unwrap_or(Call::NOTHING);
        if self.is_by_shared_memory(operation, &call) {
            choice.reason = "shared memory has one implementation of each operation".to_owned();
            choice.by_shared_memory = true;
            return choice;
        }
        if sketch.is_none() {
            choice.reason = "this operation has only one schedule".to_owned();
            return choice;
        }
        let chooser = self.chooser();
        let decision = chooser.look(operation, &call);
        let (model, hosts) = (chooser.model(), chooser.hosts());
        let counted = counts(
            decision.algorithm,
            operation,
            hosts,
            len,
            dtype.size(),
            model.cores,
        );
        let bytes = len * dtype.size();
        let seconds = |counts| seconds_of(&model, operation, decision.algorithm, &counts, bytes);
        choice.predicted = counted.ok().map(seconds).and_then(duration);
        choice.algorithm = Some(decision.algorithm);
        choice.reason = decision.reason;
        choice
    }

    /// Returns the choices between algorithms that this group has made so far, ordered by operation
    /// and length: one for each operation and class of lengths, a quarter of a power of two wide. At
    /// most the last 4,096; those from before the costs were measured again are dropped.
    #[must_use]
    pub fn choices(&self) -> Vec<RecordedChoice> {
        self.chooser().taken()
    }

    /// Returns the costs for this group's choice: measured, or [`CostModel::default`].
    #[must_use]
    pub fn cost_model(&self) -> CostModel {
        self.chooser().model()
    }

    /// Checks and describes a call, and chooses its algorithm.
    pub(crate) fn describe(
        &self,
        operation: &Operation,
        buffer: &Buffer,
    ) -> Result<Call, CollectiveError> {
        let mut call = program::describe(operation, buffer, self.member())?;
        if has_several(operation) && !self.is_by_shared_memory(operation, &call) {
            let algorithm = self.chooser().take(operation, &call);
            program::run_by(&mut call, algorithm, self.chooser().hosts());
        }
        Ok(call)
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::ReduceOp;

    use super::*;

    fn call(kind: CallKind, len: u64, detail: u64) -> Call {
        Call {
            kind,
            len,
            detail,
            dtype: DType::F32,
            ..Call::NOTHING
        }
    }

    #[test]
    fn classes_are_a_quarter_of_a_power_of_two_and_cover_all_lengths() {
        let mut at = 0;
        while at < 100_000 {
            let class = class_of(at);
            assert_eq!(class.start, at);
            assert!(class.len() <= 1 + at / 4);
            assert_eq!(class_of(class.end - 1), class);
            at = class.end;
        }
        assert!(class_of(usize::MAX).contains(&(usize::MAX - 1)));
    }

    #[test]
    fn a_choice_is_made_once_for_a_class_and_counted() {
        let chooser = Chooser::new(None, Hosts::one(4));
        let sum = Operation::AllReduce(ReduceOp::Sum);
        for len in [1 << 20, (1 << 20) + 1, 3 << 20] {
            chooser.take(&sum, &call(CallKind::AllReduce, len, 0));
        }
        for root in 0..4 {
            let operation = Operation::Broadcast {
                root: GroupRank(root),
            };
            chooser.take(&operation, &call(CallKind::Broadcast, 8, u64::from(root)));
        }
        let taken = chooser.taken();
        let told: Vec<_> = taken.iter().map(|t| (&*t.operation, t.times)).collect();
        assert_eq!(
            told,
            [("all_reduce", 2), ("all_reduce", 1), ("broadcast", 4)]
        );
        assert_eq!(taken[0].bytes, 4 << 20..5 << 20);
        assert!(taken[0].choice.reason.contains("default costs"));
        let measured = CostModel {
            is_measured: true,
            ..CostModel::default()
        };
        chooser.set_model(measured);
        assert!(chooser.taken().is_empty());
        chooser.take(&sum, &call(CallKind::AllReduce, ANY_LEN, 0));
        assert!(chooser.taken()[0].choice.reason.contains("measured"));
    }

    #[test]
    fn the_cache_of_choices_is_bounded() {
        let chooser = Chooser::new(Some(Algorithm::Direct), Hosts::one(2));
        let sum = Operation::AllReduce(ReduceOp::Sum);
        for detail in 0..2 * REMEMBERED_MAX as u64 {
            chooser.take(&sum, &call(CallKind::ExactSum, 1, detail));
        }
        assert!(chooser.taken().len() <= REMEMBERED_MAX);
    }

    /// Run with `cargo test --release -p ronde-comm cost_of -- --ignored --nocapture`.
    #[test]
    #[ignore = "prints a measurement"]
    fn cost_of_choosing() {
        const COUNT: u32 = 1_000_000;
        let sum = Operation::AllReduce(ReduceOp::Sum);
        for size in [2, 16, 64, 256] {
            let chooser = Chooser::new(None, Hosts::one(size));
            let begin = ronde_clock::now();
            chooser.take(&sum, &call(CallKind::AllReduce, 1 << 20, 0));
            let first = ronde_clock::now().duration_since(begin);
            let begin = ronde_clock::now();
            for place in 0..COUNT {
                let len = (1 << 20) + u64::from(place % 1000);
                chooser.take(&sum, &call(CallKind::AllReduce, len, 0));
            }
            let again = ronde_clock::now().duration_since(begin) / COUNT;
            println!("{size} ranks: {first:?} for the first of a class, then {again:?}");
            assert_eq!(chooser.taken()[0].times, u64::from(COUNT) + 1);
        }
    }
}
