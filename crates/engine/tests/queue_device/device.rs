//! [`QueueDevice`]: a device whose kernels run later, in another thread, on memory that the host cannot address.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_engine::device::kernel::{
    KernelMemory, KernelOperand, MapOperands, OnDevice, OperandLength, WriteAccess,
};
use ronde_engine::device::{DeviceKernel, Kernel};
use ronde_engine::*;

/// The bits of a value that was never written: NaN that no kernel computes.
const POISON: u32 = 0x7fa5_5a5a;
/// The number of floats between two buffers in one memory.
const GAP: usize = 7;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Values, stored with all bits inverted, so that code that bypasses the device reads nonsense.
struct QueueMemory(Mutex<Vec<u32>>);

impl QueueMemory {
    fn poisoned(length: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![!POISON; length])))
    }
}

/// A range of a memory, which stays alive as long as work in the queue needs it.
#[derive(Clone)]
struct MemoryRange {
    memory: Arc<QueueMemory>,
    range: Range<usize>,
}

impl MemoryRange {
    fn of(memory: &dyn ForeignMemory, start: usize, length: usize) -> Self {
        let buffer = memory.as_any().downcast_ref::<QueueBuffer>();
        let place = &buffer.expect("memory of this device").place;
        let start = place.range.start + start;
        Self {
            memory: place.memory.clone(),
            range: start..start + length,
        }
    }

    fn load(&self) -> Vec<f32> {
        let values = locked(&self.memory.0);
        let bits = values[self.range.clone()].iter();
        bits.map(|bits| f32::from_bits(!bits)).collect()
    }

    fn store(&self, values: &[f32]) {
        let mut to = locked(&self.memory.0);
        for (to, value) in to[self.range.clone()].iter_mut().zip(values) {
            *to = !value.to_bits();
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let [one, two] = [&self.range, &other.range];
        Arc::ptr_eq(&self.memory, &other.memory) && one.start.max(two.start) < one.end.min(two.end)
    }
}

impl OperandLength for MemoryRange {
    fn floats(&self) -> usize {
        self.range.len()
    }
}

/// Operands of work in the queue.
struct InQueue;

impl KernelMemory for InQueue {
    type Read = MemoryRange;
    type Write = MemoryRange;
}

/// Takes the ranges that operands refer to.
struct TakeRanges;

impl MapOperands<OnDevice<'_>, InQueue> for TakeRanges {
    fn read(&mut self, operand: DeviceSlice<'_>) -> MemoryRange {
        match operand {
            DeviceSlice::Host(_) => panic!("memory of the host reached a kernel of the device"),
            DeviceSlice::Foreign {
                memory,
                start,
                length,
            } => MemoryRange::of(memory, start, length),
        }
    }

    fn write(&mut self, operand: DeviceSliceMut<'_>, _access: WriteAccess) -> MemoryRange {
        match operand {
            DeviceSliceMut::Host(_) => panic!("memory of the host reached a kernel of the device"),
            DeviceSliceMut::Foreign {
                memory,
                start,
                length,
            } => MemoryRange::of(memory, start, length),
        }
    }
}

/// An operand while the host computes on a copy of it.
struct OperandCopy {
    place: MemoryRange,
    /// `None`: the operand is only read.
    access: Option<WriteAccess>,
    values: Vec<f32>,
}

/// Replaces operands by their copies, in the same order.
struct UseCopies<'a>(std::slice::IterMut<'a, OperandCopy>);

impl<'a> UseCopies<'a> {
    fn next(&mut self) -> &'a mut [f32] {
        &mut self.0.next().expect("a copy of each operand").values
    }
}

impl<'a> MapOperands<InQueue, OnDevice<'a>> for UseCopies<'a> {
    fn read(&mut self, _operand: MemoryRange) -> DeviceSlice<'a> {
        DeviceSlice::Host(self.next())
    }

    fn write(&mut self, _operand: MemoryRange, _access: WriteAccess) -> DeviceSliceMut<'a> {
        DeviceSliceMut::Host(self.next())
    }
}

/// A mistake in a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelFault {
    /// It does nothing.
    DoesNothing,
    /// It does nothing without elements.
    IgnoresEmpty,
    /// It reads zeros instead of its first operand.
    ForgetsFirstOperand,
    /// It reads zeros instead of its last operand.
    ForgetsLastOperand,
    /// The last element of its first output is wrong.
    MissesLastElement,
    /// It adds to an output that it should replace.
    AddsToOutput,
    /// It replaces an output that it should update.
    ForgetsOldValues,
    /// It takes NaN for zero.
    HidesNan,
    /// Its bits differ between two calls.
    ChangesBits,
}

impl KernelFault {
    pub(crate) const ALL: [Self; 9] = [
        Self::DoesNothing,
        Self::IgnoresEmpty,
        Self::ForgetsFirstOperand,
        Self::ForgetsLastOperand,
        Self::MissesLastElement,
        Self::AddsToOutput,
        Self::ForgetsOldValues,
        Self::HidesNan,
        Self::ChangesBits,
    ];
}

/// The operands with which a kernel has run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SeenKernel {
    pub(crate) runs: usize,
    pub(crate) has_been_empty: bool,
    pub(crate) has_read_nan: bool,
}

/// The state of the thread that runs the kernels.
struct QueueWorker {
    host: HostDevice,
    fault: Option<(&'static str, KernelFault)>,
    status: Arc<Mutex<QueueStatus>>,
    delays: u32,
}

#[derive(Default)]
struct QueueStatus {
    error: Option<String>,
    seen: BTreeMap<&'static str, SeenKernel>,
    /// Whether the fault has changed a result, or could have.
    has_failed: bool,
}

enum QueuedWork {
    Run(Box<Kernel<InQueue>>),
    Write(MemoryRange, Vec<f32>),
    /// Answers when all work before it is done.
    Wait(Sender<()>),
}

impl QueueWorker {
    fn serve(mut self, work: &Receiver<QueuedWork>) {
        for work in work {
            // Now and then the work is late.
            self.delays = self
                .delays
                .wrapping_mul(1_664_525)
                .wrapping_add(1_013_904_223);
            if self.delays >> 26 == 0 {
                std::thread::park_timeout(Duration::from_micros(u64::from(
                    self.delays >> 16 & 127,
                )));
            }
            match work {
                QueuedWork::Run(kernel) => self.run(*kernel),
                QueuedWork::Write(place, values) => place.store(&values),
                // Nobody waits if the caller has panicked.
                QueuedWork::Wait(done) => drop(done.send(())),
            }
        }
    }

    fn fail(&self, problem: String) {
        locked(&self.status).error.get_or_insert(problem);
    }

    fn run(&mut self, kernel: Kernel<InQueue>) {
        let name = kernel.name();
        let mut copies = Vec::new();
        kernel.each_operand(&mut |operand| {
            let (place, access) = match operand {
                KernelOperand::Read(place) => (place, None),
                KernelOperand::Write(place, access) => (place, Some(access)),
            };
            let values = match access {
                // Its values are replaced, so the kernel must not depend on them.
                Some(WriteAccess::Write) => vec![f32::from_bits(POISON); place.range.len()],
                Some(WriteAccess::Update) | None => place.load(),
            };
            copies.push(OperandCopy {
                place: place.clone(),
                access,
                values,
            });
        });
        self.check_operands(name, &copies);
        self.note(name, &copies);
        let fault = self
            .fault
            .filter(|(of, _)| *of == name)
            .map(|(_, fault)| fault);
        if let Some(fault) = fault
            && !self.spoil_operands(fault, &mut copies)
        {
            return;
        }
        // A kernel with a fault may also panic.
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let mut copied = UseCopies(copies.iter_mut());
            self.host.run(kernel.map(&mut copied));
        }));
        if ran.is_err() {
            self.fail(format!("{name} has panicked"));
        }
        if let Some(fault) = fault {
            self.spoil_results(name, fault, &mut copies);
        }
        for copy in &copies {
            if copy.access.is_some() {
                if copy.access == Some(WriteAccess::Write)
                    && copy.values.iter().any(|value| value.to_bits() == POISON)
                {
                    self.fail(format!("{name} does not write all of an output"));
                }
                copy.place.store(&copy.values);
            }
        }
    }

    /// Checks that outputs overlap with nothing, and that inputs were written.
    fn check_operands(&self, name: &str, copies: &[OperandCopy]) {
        for (index, copy) in copies.iter().enumerate() {
            let mut others = copies.iter().enumerate();
            if copy.access.is_some()
                && others.any(|(other, of)| other != index && of.place.overlaps(&copy.place))
            {
                self.fail(format!("an output of {name} overlaps with another operand"));
            }
            let is_poisoned = copy.values.iter().any(|value| value.to_bits() == POISON);
            if copy.access.is_none() && is_poisoned {
                self.fail(format!("{name} reads values that were never written"));
            }
        }
    }

    fn note(&self, name: &'static str, copies: &[OperandCopy]) {
        let mut status = locked(&self.status);
        let seen = status.seen.entry(name).or_default();
        seen.runs += 1;
        seen.has_been_empty |= copies.iter().any(|copy| copy.values.is_empty());
        let mut read = copies
            .iter()
            .filter(|copy| copy.access != Some(WriteAccess::Write));
        seen.has_read_nan |= read.any(|copy| copy.values.iter().any(|value| value.is_nan()));
    }

    /// Makes a mistake before the kernel runs. Returns whether it runs at all.
    fn spoil_operands(&self, fault: KernelFault, copies: &mut [OperandCopy]) -> bool {
        let is_empty = copies.iter().any(|copy| copy.values.is_empty());
        let has_output = copies
            .iter()
            .any(|copy| copy.access.is_some() && !copy.values.is_empty());
        let mut status = locked(&self.status);
        let read = |copy: &OperandCopy| copy.access.is_none() && !copy.values.is_empty();
        let forgotten = match fault {
            KernelFault::DoesNothing => {
                status.has_failed |= has_output;
                return false;
            }
            KernelFault::IgnoresEmpty if is_empty => {
                // An update of nothing changes nothing.
                let writes = |copy: &OperandCopy| {
                    copy.access == Some(WriteAccess::Write) && !copy.values.is_empty()
                };
                status.has_failed |= copies.iter().any(writes);
                return false;
            }
            KernelFault::ForgetsFirstOperand => copies.iter_mut().find(|copy| read(copy)),
            KernelFault::ForgetsLastOperand => copies.iter_mut().rev().find(|copy| read(copy)),
            KernelFault::ForgetsOldValues => {
                let updated = |copy: &&mut OperandCopy| copy.access == Some(WriteAccess::Update);
                copies.iter_mut().find(updated)
            }
            KernelFault::HidesNan => {
                for copy in copies.iter_mut() {
                    for value in &mut copy.values {
                        if value.is_nan() && value.to_bits() != POISON {
                            *value = 0.0;
                            status.has_failed = true;
                        }
                    }
                }
                None
            }
            _ => None,
        };
        if let Some(copy) = forgotten {
            status.has_failed |= copy.values.iter().any(|value| *value != 0.0);
            copy.values.fill(0.0);
        }
        true
    }

    /// Makes a mistake after the kernel has run.
    fn spoil_results(&self, name: &str, fault: KernelFault, copies: &mut [OperandCopy]) {
        let mut status = locked(&self.status);
        let Some(output) = copies
            .iter_mut()
            .find(|copy| copy.access.is_some() && !copy.values.is_empty())
        else {
            return;
        };
        let before = output.place.load();
        let last = output.values.len() - 1;
        match fault {
            KernelFault::MissesLastElement => {
                status.has_failed = true;
                output.values[last] = -output.values[last] - 1.0;
            }
            KernelFault::AddsToOutput if output.access == Some(WriteAccess::Write) => {
                status.has_failed = true;
                for (value, before) in output.values.iter_mut().zip(before) {
                    *value += before;
                }
            }
            KernelFault::ChangesBits => {
                status.has_failed = true;
                // 0, 1, 1, 0 and so on: it differs between two runs of one or of two calls.
                let runs = status.seen.get(name).map_or(0, |seen| seen.runs - 1) as u32;
                let bit = (runs ^ runs >> 1) & 1;
                let bits = output.values[last].to_bits() ^ bit;
                output.values[last] = f32::from_bits(bits);
            }
            _ => {}
        }
    }
}

/// A buffer of the device.
struct QueueBuffer {
    place: MemoryRange,
    queue: Sender<QueuedWork>,
}

fn wait(queue: &Sender<QueuedWork>) {
    let (done, is_done) = mpsc::channel();
    queue.send(QueuedWork::Wait(done)).expect("the queue runs");
    is_done.recv().expect("the queue answers");
}

impl ForeignMemory for QueueBuffer {
    fn length(&self) -> usize {
        self.place.range.len()
    }

    fn read(&self, to: &mut [f32]) {
        wait(&self.queue);
        to.copy_from_slice(&self.place.load());
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Computes with the kernels of the host on copies, in the order of the calls and later than they return.
pub(crate) struct QueueDevice {
    queue: Sender<QueuedWork>,
    status: Arc<Mutex<QueueStatus>>,
    /// The memory of all buffers with the end of those that were allocated; `None`: they do not share one.
    shared: Option<(Arc<QueueMemory>, Mutex<usize>)>,
}

impl QueueDevice {
    /// Creates a device whose buffers do not share memory.
    pub(crate) fn new() -> Self {
        Self::start(None, None)
    }

    /// Creates a device whose buffers are ranges of one memory of some floats, which are never used again.
    pub(crate) fn in_one_memory(floats: usize) -> Self {
        let shared = (QueueMemory::poisoned(floats), Mutex::new(0));
        Self::start(None, Some(shared))
    }

    /// Creates a device with a fault in one kernel.
    pub(crate) fn with_fault(kernel: &'static str, fault: KernelFault) -> Self {
        Self::start(Some((kernel, fault)), None)
    }

    fn start(
        fault: Option<(&'static str, KernelFault)>,
        shared: Option<(Arc<QueueMemory>, Mutex<usize>)>,
    ) -> Self {
        let (queue, work) = mpsc::channel();
        let status = Arc::<Mutex<QueueStatus>>::default();
        let worker = QueueWorker {
            host: HostDevice::new(),
            fault,
            status: status.clone(),
            delays: 1,
        };
        std::thread::spawn(move || worker.serve(&work));
        Self {
            queue,
            status,
            shared,
        }
    }

    fn add(&self, work: QueuedWork) {
        self.queue.send(work).expect("the queue runs");
    }

    /// Returns how kernels have run, by name.
    pub(crate) fn seen(&self) -> BTreeMap<&'static str, SeenKernel> {
        wait(&self.queue);
        locked(&self.status).seen.clone()
    }

    /// Returns whether the fault has changed a result, or could have.
    pub(crate) fn has_failed(&self) -> bool {
        wait(&self.queue);
        locked(&self.status).has_failed
    }
}

impl Device for QueueDevice {
    fn name(&self) -> String {
        "queue".to_owned()
    }

    fn allocate(&self, length: usize) -> DeviceBuffer {
        let place = match &self.shared {
            None => MemoryRange {
                memory: QueueMemory::poisoned(length),
                range: 0..length,
            },
            Some((memory, end)) => {
                let mut end = locked(end);
                let start = *end;
                *end += length + GAP;
                MemoryRange {
                    memory: memory.clone(),
                    range: start..start + length,
                }
            }
        };
        let queue = self.queue.clone();
        DeviceBuffer::Foreign(Box::new(QueueBuffer { place, queue }))
    }

    fn has_independent_rows(&self) -> bool {
        true
    }

    fn is_host(&self) -> bool {
        false
    }

    fn write(&self, from: &[f32], to: DeviceSliceMut<'_>) {
        let place = TakeRanges.write(to, WriteAccess::Write);
        self.add(QueuedWork::Write(place, from.to_vec()));
    }

    fn run(&self, kernel: DeviceKernel<'_>) {
        self.add(QueuedWork::Run(Box::new(kernel.map(&mut TakeRanges))));
    }

    fn take_error(&self) -> Option<String> {
        wait(&self.queue);
        locked(&self.status).error.take()
    }
}
