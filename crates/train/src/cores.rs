//! [`Cores`]: the thread of a worker that computes gets a core of its own, its other threads the rest.

use std::cell::Cell;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Which cores a worker's threads run on, where the host has some to spare. Threads that are started
/// while the caller is aside stay there.
#[derive(Debug)]
pub(crate) struct Cores {
    all: CpuSet,
    compute: CpuSet,
    others: CpuSet,
    computes: Cell<bool>,
}

impl Cores {
    /// Puts the calling thread aside, for a worker that is one of several on this host; `None`, and
    /// nothing happens, where there are fewer than two cores for each of them, or where the system
    /// refuses.
    pub(crate) fn take(local_rank: u32, local_world_size: u32) -> Option<Self> {
        let all = sched_getaffinity(None).ok()?;
        let (compute, others) = share(&all, local_rank, local_world_size)?;
        sched_setaffinity(None, &others).ok()?;
        Some(Self {
            all,
            compute,
            others,
            computes: Cell::new(false),
        })
    }

    /// Moves the calling thread to the core for computing. Cost: a system call where it is not there.
    pub(crate) fn compute(&self) {
        if !self.computes.replace(true) {
            // Refused by a system that allowed it before: it computes where it is.
            let _ = sched_setaffinity(None, &self.compute);
        }
    }

    /// Moves the calling thread beside it.
    pub(crate) fn aside(&self) {
        if self.computes.replace(false) {
            let _ = sched_setaffinity(None, &self.others);
        }
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.all);
    }
}

/// A worker's share of the cores of this host that none of its workers computes on.
pub(crate) fn free(local_world_size: u32) -> usize {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = (local_world_size as usize).max(1);
    all.saturating_sub(workers) / workers
}

/// The core of a worker's computation, and those that none of the workers computes on.
fn share(all: &CpuSet, local_rank: u32, local_world_size: u32) -> Option<(CpuSet, CpuSet)> {
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&core| all.is_set(core))
        .collect();
    let (rank, workers) = (local_rank as usize, local_world_size as usize);
    if workers == 0 || rank >= workers || cores.len() < 2 * workers {
        return None;
    }
    let set = |cores: &[usize]| {
        let mut set = CpuSet::new();
        cores.iter().for_each(|&core| set.set(core));
        set
    };
    Some((set(&cores[rank..=rank]), set(&cores[workers..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cores: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cores.iter().for_each(|&core| set.set(core));
        set
    }

    #[test]
    fn each_worker_computes_on_its_own_core_where_there_are_two_for_each() {
        let all = set(&[1, 4, 5, 9, 12]);
        assert_eq!(share(&all, 0, 1), Some((set(&[1]), set(&[4, 5, 9, 12]))));
        assert_eq!(share(&all, 0, 2), Some((set(&[1]), set(&[5, 9, 12]))));
        assert_eq!(share(&all, 1, 2), Some((set(&[4]), set(&[5, 9, 12]))));
        assert_eq!(share(&all, 0, 3), None);
        assert_eq!(share(&all, 2, 2), None);
        assert_eq!(share(&set(&[0]), 0, 1), None);
        assert_eq!(share(&all, 0, 0), None);
    }

    #[test]
    fn a_thread_goes_to_its_core_and_back_and_others_stay_aside() {
        // In a thread of its own: the setting is the thread's.
        let checked = std::thread::spawn(|| {
            let all = sched_getaffinity(None).unwrap();
            let Some(cores) = Cores::take(0, 1) else {
                assert!(all.count() < 2, "there are cores to spare");
                return;
            };
            let started = std::thread::spawn(|| sched_getaffinity(None).unwrap());
            assert_eq!(started.join().unwrap(), cores.others);
            cores.compute();
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            cores.aside();
            assert_eq!(sched_getaffinity(None).unwrap(), cores.others);
            drop(cores);
            assert_eq!(sched_getaffinity(None).unwrap(), all);
        });
        checked.join().unwrap();
    }
}
