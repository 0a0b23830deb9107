//! The flags of shared memory under loom: all interleavings of two and three ranks, on the source files of
//! the library.
//!
//! `flags.rs` and `pieces.rs` are compiled here a second time, with loom's atomics instead of those
//! of the processor. Memory that the flags guard is in loom's cells, which detect every access that is
//! not ordered; sleeping has no limit here, so a lost wake-up is a deadlock. That these are
//! detected is tested too: each [`Bug`] is injected, and must be found.
#![expect(clippy::unwrap_used, reason = "a test")]

mod atomics;
#[path = "../../src/shared/flags.rs"]
mod flags;
#[path = "../../src/shared/pieces.rs"]
mod pieces;

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;

use atomics::{AtomicU32, Bug, with_bug};
use flags::{Flag, TURNS, WaitOutcome, WaitPace, reached, turn};
use pieces::{PieceStep, PieceTask, ProgressBoard, ProgressMark, stage_of};

/// Maximum number of preemptions in each run: bugs that need more than two are rare.
const PREEMPTIONS: usize = 2;

fn check(bound: Option<usize>, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = bound;
    model.max_branches = 20_000;
    model.check(test);
}

/// The words of a rank.
#[derive(Default)]
struct Words {
    waiters: AtomicU32,
    arrived: [AtomicU32; TURNS as usize],
    brought: AtomicU32,
    worked: AtomicU32,
}

impl Words {
    fn flag<'a>(&'a self, word: &'a AtomicU32) -> Flag<'a> {
        Flag {
            word,
            waiters: &self.waiters,
        }
    }

    fn arrived(&self, sequence: u32) -> Flag<'_> {
        self.flag(&self.arrived[turn(sequence) as usize])
    }
}

/// Waits as the library does, with `spins` loads before it sleeps.
fn wait(flag: Flag<'_>, spins: u32, is_there: impl Fn(u32) -> bool) -> WaitOutcome {
    let pace = WaitPace {
        spins,
        yields: 0,
        sleep_max: Duration::ZERO,
    };
    let found = flag.wait(pace, is_there, || false, || None::<Infallible>);
    found.unwrap_or_else(|never| match never {})
}

/// A value guarded by flags.
#[derive(Default)]
struct Guarded(UnsafeCell<u32>);

// The tests check that accesses are ordered; loom detects those that are not.
#[expect(unsafe_code, reason = "loom's cells are reached through pointers")]
impl Guarded {
    fn read(&self) -> u32 {
        // SAFETY: loom panics if this is not ordered with every write.
        self.0.with(|at| unsafe { *at })
    }

    fn write(&self, value: u32) {
        // SAFETY: as above.
        self.0.with_mut(|at| unsafe { *at = value });
    }
}

#[expect(unsafe_code, reason = "shared between loom's threads")]
// SAFETY: loom's threads take turns on one thread.
unsafe impl Sync for Guarded {}
#[expect(unsafe_code, reason = "shared between loom's threads")]
// SAFETY: as above.
unsafe impl Send for Guarded {}

/// Runs a rank's part on each of `size` threads.
fn ranks(size: usize, part: impl Fn(usize) + Send + Sync + 'static) {
    let part = Arc::new(part);
    let others: Vec<_> = (1..size)
        .map(|rank| {
            let part = Arc::clone(&part);
            loom::thread::spawn(move || part(rank))
        })
        .collect();
    part(0);
    for other in others {
        other.join().unwrap();
    }
}

/// One rank raises, the others wait and read.
fn one_raises(size: usize, spins: u32) {
    let (words, value) = (Words::default(), Guarded::default());
    ranks(size, move |rank| {
        let flag = words.arrived(1);
        if rank == 0 {
            value.write(7);
            flag.raise(1);
        } else {
            wait(flag, spins, |now| now == 1);
            assert_eq!(value.read(), 7);
        }
    });
}

/// All ranks announce operations and read the announcements of the others.
fn all_post(size: usize, operations: u32) {
    let words: Vec<Words> = (0..size).map(|_| Words::default()).collect();
    let slot = || [Guarded::default(), Guarded::default()];
    let slots: Vec<[Guarded; TURNS as usize]> = (0..size).map(|_| slot()).collect();
    ranks(size, move |me| {
        for sequence in 1..=operations {
            let at = turn(sequence) as usize;
            slots[me][at].write(sequence);
            words[me].arrived(sequence).raise(sequence);
            for peer in (0..size).filter(|&peer| peer != me) {
                wait(words[peer].arrived(sequence), 0, |now| now == sequence);
                assert_eq!(slots[peer][at].read(), sequence);
            }
        }
    });
}

/// The words of all ranks, as a progress board.
struct AllWords(Vec<Words>);

impl ProgressBoard for AllWords {
    type Stop = Infallible;

    fn flag(&self, rank: usize, mark: ProgressMark) -> Flag<'_> {
        let words = &self.0[rank];
        words.flag(match mark {
            ProgressMark::Brought => &words.brought,
            ProgressMark::Worked => &words.worked,
        })
    }

    fn wait(&self, rank: usize, mark: ProgressMark, value: u32, _: u32) -> Result<(), Infallible> {
        wait(self.flag(rank, mark), 0, |now| reached(now, value));
        Ok(())
    }
}

/// Sums through stages: each rank brings the slices of the others, sums its own, and takes the others'.
///
/// Ranks assume that there are `stages`, but there are `real`.
fn sum_in_pieces(size: usize, pieces: u32, stages: u32, real: u32) {
    sum_where(size, pieces, stages, real, |_, slice| slice);
}

/// Sums as [`sum_in_pieces`] does; `place` returns the offset of a slice of a piece in its stage.
fn sum_where(size: usize, pieces: u32, stages: u32, real: u32, place: fn(u32, usize) -> usize) {
    let board = AllWords((0..size).map(|_| Words::default()).collect());
    // By rank, stage and slice.
    let count = size * real as usize * size;
    let cells: Vec<Guarded> = (0..count).map(|_| Guarded::default()).collect();
    // Counters wrap in the middle.
    let base = 0_u32.wrapping_sub(2);
    for words in &board.0 {
        words.brought.preset(base);
        words.worked.preset(base);
    }
    ranks(size, move |me| {
        let terms = PieceTask {
            me,
            size,
            base,
            pieces,
            stages,
        };
        let others = || (0..size).filter(|&rank| rank != me);
        let cell = |rank: usize, piece: u32, slice: usize| {
            let stage = stage_of(piece, stages) % real;
            let at = place(piece, slice) % size;
            &cells[(rank * real as usize + stage as usize) * size + at]
        };
        let value = |rank: usize, piece: u32| 1 + rank as u32 + 100 * piece;
        let sum = |piece: u32| (0..size).map(|rank| value(rank, piece)).sum::<u32>();
        let step = |step, piece| match step {
            PieceStep::Bring => {
                others().for_each(|slice| cell(me, piece, slice).write(value(me, piece)))
            }
            PieceStep::Work => {
                let theirs: u32 = others().map(|rank| cell(rank, piece, me).read()).sum();
                cell(me, piece, me).write(theirs + value(me, piece));
            }
            PieceStep::Take => {
                others().for_each(|rank| assert_eq!(cell(rank, piece, rank).read(), sum(piece)));
            }
        };
        let done: Result<(), Infallible> = pieces::run(&board, terms, |_| true, step);
        done.unwrap_or_else(|never| match never {});
    });
}

#[test]
fn a_raised_flag_wakes_and_shows_what_was_written_before() {
    for spins in [0, 2] {
        check(None, move || one_raises(2, spins));
    }
    check(Some(PREEMPTIONS), || one_raises(3, 0));
}

#[test]
fn two_slots_are_reused_only_after_all_have_read_them() {
    check(Some(PREEMPTIONS), || all_post(2, 4));
    check(Some(1), || all_post(3, 3));
}

#[test]
fn pieces_go_round_the_stages_without_being_overwritten() {
    check(Some(PREEMPTIONS), || sum_in_pieces(2, 3, 1, 1));
    check(Some(1), || sum_in_pieces(2, 4, 2, 2));
    check(Some(0), || sum_in_pieces(3, 3, 1, 1));
}

#[test]
fn known_bugs_are_found() {
    for bug in Bug::ALL {
        let found = with_bug(bug, || {
            let models: [fn(); 3] = [
                || check(Some(PREEMPTIONS), || one_raises(2, 0)),
                || check(Some(PREEMPTIONS), || all_post(2, 4)),
                || check(Some(1), || sum_in_pieces(2, 3, 1, 1)),
            ];
            models.map(|model| catch_unwind(AssertUnwindSafe(model)).is_err())
        });
        assert!(found.contains(&true), "{bug:?} was not found");
    }
}

#[test]
fn a_stage_less_would_be_too_few() {
    let one_less = || check(Some(PREEMPTIONS), || sum_in_pieces(2, 4, 2, 1));
    assert!(catch_unwind(AssertUnwindSafe(one_less)).is_err());
}

#[test]
fn slices_at_another_offset_in_the_next_piece_would_be_overwritten() {
    let shifted = || sum_where(2, 3, 1, 1, |piece, slice| piece as usize + slice);
    let check = || check(Some(PREEMPTIONS), shifted);
    assert!(catch_unwind(AssertUnwindSafe(check)).is_err());
}
