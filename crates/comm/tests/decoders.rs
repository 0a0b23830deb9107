//! Hundreds of thousands of broken inputs for every decoder of received bytes: each must return an error, never
//! panic, and never allocate more memory than the input's size allows.
//!
//! The same targets run under `cargo fuzz`, see `fuzz/README.md`.

#[path = "../../../fuzz/src/targets.rs"]
#[expect(unreachable_pub, reason = "the file is a part of a library elsewhere")]
mod targets;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ronde_core::philox::Stream;
use targets::{ALL, Target};

thread_local! {
    /// Bytes that this thread has allocated since the measurement started; negative if it freed
    /// older ones.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// The maximum of `now`.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator with counters per thread.
struct Counting;

fn count(bytes: isize) {
    // The counters of a thread that is ending may be gone already.
    let _ended = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ended = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

#[expect(unsafe_code, reason = "only an allocator can count allocations")]
// SAFETY: every call is forwarded to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's guarantees are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: as above; the memory was allocated by the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Decodes bytes and checks the invariants of any input.
fn attempt(target: &Target, bytes: &[u8]) -> Result<(), String> {
    HELD.set(0);
    PEAK.set(0);
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.read)(bytes)));
    let peak = PEAK.get().cast_unsigned();
    let (times, more) = target.memory;
    let limit = bytes.len() * times + more;
    let shown = || format!("{}: {} bytes, {bytes:02x?}", target.name, bytes.len());
    let Ok(outcome) = outcome else {
        panic!("a panic, see above, for {}", shown());
    };
    assert!(
        peak <= limit,
        "{peak} bytes of memory, limit {limit}, for {}",
        shown()
    );
    outcome.map_err(|error| error.to_string())
}

/// Random numbers of one target, the same in every run.
struct Dice {
    stream: Stream,
    rolled: u64,
}

impl Dice {
    fn word(&mut self) -> u32 {
        self.rolled += 1;
        self.stream.block(self.rolled)[0]
    }

    /// Returns a number below `sides`; 0 if `sides` is 0.
    fn roll(&mut self, sides: usize) -> usize {
        self.word() as usize % sides.max(1)
    }
}

/// The documented limit of a hello's body.
const HELLO_BYTES_MAX: usize = 64 << 10;

/// Strings that often break text and binary formats.
const WORDS: [&[u8]; 16] = [
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\0\0\0\0\0",
    b"\0\0\0\x80",
    b"\0\0\x01\0",
    b"\xf0\x9f\xa6\x80",
    b"\xc3",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    b"{\"message\":",
    b"1e999",
    b"-1",
    b"\"\\u0000\\ud800\"",
    b"18446744073709551616",
    b"-----BEGIN CERTIFICATE-----\n",
    b"\x30\x84\xff\xff\xff\xff",
    b"\n",
];

/// Corrupts bytes in one to four ways.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    for _ in 0..=dice.roll(4) {
        let at = dice.roll(bytes.len());
        let end = (at + 1 + dice.roll(16)).min(bytes.len());
        match dice.roll(8) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << dice.roll(8),
            1 if !bytes.is_empty() => bytes[at] = dice.word() as u8,
            2 => drop(bytes.drain(at.min(end)..end)),
            3 => {
                let again = bytes[at.min(end)..end].repeat(1 + dice.roll(30));
                bytes.splice(at..at, again);
            }
            4 => bytes.truncate(at),
            5 => {
                let word = WORDS[dice.roll(WORDS.len())];
                let over = (at + word.len()).min(bytes.len());
                bytes.splice(at..over, word.iter().copied());
            }
            6 => {
                let word = WORDS[dice.roll(WORDS.len())];
                bytes.splice(at..at, word.iter().copied());
            }
            _ => {
                let from = dice.roll(other.len());
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
        }
    }
}

fn bombard(target: &Target) {
    let samples = (target.samples)();
    for sample in &samples {
        // The first call also initializes lazy statics.
        let _made = (target.read)(sample);
        assert_eq!(attempt(target, sample), Ok(()), "{}", target.name);
        let mut refused = 0;
        for end in 0..sample.len() {
            refused += usize::from(attempt(target, &sample[..end]).is_err());
        }
        // The bytes that are cut off may be the end of the last line.
        let is_refused = refused + 1 >= sample.len();
        assert!(is_refused || !target.needs_its_end, "{}", target.name);
        let mut flipped = sample.clone();
        for bit in 0..sample.len() * 8 {
            flipped[bit / 8] ^= 1 << (bit % 8);
            let _outcome = attempt(target, &flipped);
            flipped[bit / 8] ^= 1 << (bit % 8);
        }
    }
    let name = target
        .name
        .bytes()
        .fold(0, |sum, byte| sum * 31 + u32::from(byte));
    let stream = Stream::new([name, 1, 2, 3]);
    let mut dice = Dice { stream, rolled: 0 };
    for _ in 0..target.cases {
        let mut bytes = samples[dice.roll(samples.len())].clone();
        let other = &samples[dice.roll(samples.len())];
        mutate(&mut bytes, other, &mut dice);
        let _outcome = attempt(target, &bytes);
    }
}

macro_rules! bombarded {
    ($($name:ident: $target:ident,)*) => {
        $(#[test]
        fn $name() {
            bombard(&targets::$target);
        })*

        #[test]
        fn no_target_is_left_out() {
            let bombarded = [$(targets::$target.name),*];
            assert_eq!(ALL.map(|target| target.name), bombarded);
        }
    };
}
bombarded! {
    broken_frames_are_refused: FRAME,
    broken_hellos_are_refused: HELLO,
    broken_notices_are_refused: NOTICE,
    broken_lines_of_workers_are_refused: FROM_WORKER,
    broken_lines_of_supervisors_are_refused: FROM_SUPERVISOR,
    broken_questions_are_refused: QUESTION,
    broken_lines_of_agents_are_refused: FROM_AGENT,
    broken_lines_of_coordinators_are_refused: TO_AGENT,
    broken_tokens_are_refused: JOIN_TOKEN,
    broken_identities_are_refused: IDENTITY,
    broken_authorities_are_refused: AUTHORITY,
    broken_certificates_are_refused: CERTIFICATE,
    broken_tfrecords_are_refused: TFRECORD,
    broken_archives_are_refused: TAR,
    broken_arrays_are_refused: NPY,
    broken_files_of_arrays_are_refused: NPZ,
    broken_lines_are_refused: CSV,
    broken_indexes_are_refused: INDEX,
    broken_weights_are_refused: SAFETENSORS,
    broken_initial_weights_are_refused: INITIAL_WEIGHTS,
    broken_manifests_are_refused: MANIFEST,
    broken_requests_for_predictions_are_refused: PREDICT_REQUEST,
    broken_requests_for_texts_are_refused: GENERATE_REQUEST,
    broken_frames_of_remote_calls_are_refused: RPC_FRAMES,
    broken_first_messages_of_remote_calls_are_refused: RPC_HELLO,
}

#[test]
fn a_hello_of_the_largest_size_takes_no_more_memory_than_allowed() {
    // As many parts of a plan as fit: four bytes of name, no value.
    let sample = (targets::HELLO.samples)().swap_remove(0);
    let count = (HELLO_BYTES_MAX - (sample.len() - 16)) / 12;
    let mut body = sample[16..sample.len() - 4].to_vec();
    body.extend((count as u32).to_le_bytes());
    for part in 0..count as u32 {
        body.extend(4_u32.to_le_bytes());
        // Letters, so that it is valid text.
        body.extend((0..4).map(|digit| b'a' + (part >> (4 * digit) & 15) as u8));
        body.extend(0_u32.to_le_bytes());
    }
    let mut bytes = sample[..12].to_vec();
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    assert_eq!(attempt(&targets::HELLO, &bytes), Ok(()));
}

/// Tests the harness: it detects excessive memory and a panic.
#[test]
fn a_reader_that_trusts_a_length_or_panics_is_found() {
    let greedy = Target {
        name: "greedy",
        samples: Vec::new,
        read: |bytes| {
            let promised = usize::from(bytes[0]) << 20;
            let room = std::hint::black_box(vec![0_u8; promised]);
            Err(format!("{} bytes", room.len()).into())
        },
        memory: (16, 1 << 10),
        needs_its_end: true,
        cases: 0,
    };
    assert!(attempt(&greedy, &[0]).is_err());
    for (bytes, found) in [(&[200_u8][..], "bytes of memory"), (&[], "a panic")] {
        let outcome = catch_unwind(|| attempt(&greedy, bytes));
        let panic = outcome.expect_err("the harness detects it");
        let told = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(told.contains(found), "{told}");
    }
}
