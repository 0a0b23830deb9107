//! Measures saving and loading a state of 1 GB against plain writes of the same bytes to the same disk.
//!
//! `checkpoint_speed [folder] [MiB] [rounds] [plain|encrypted]`

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock and prints results"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_checkpoint::{
    Checkpoint, Lineage, Proof, PublishRequest, ReadRequest, Retention, SaveRequest, Saver, Slice,
    StateVector, publish, retain,
};
use ronde_core::layout::{Arena, Role, StateLayout, TensorEntry};
use ronde_core::{DataSignature, Epoch, Generation, PlanIdentity, Rank, Step, WorldSize};
use ronde_store::{Encrypted, LocalStore, MasterKey, Store};

type BoxError = Box<dyn std::error::Error>;

/// Keeps only the last checkpoint, so that the disk does not fill up.
const LAST: Retention = Retention {
    keep_last: 1,
    keep_every: 0,
    proof: Proof::Lengths,
};

/// The number of elements of a tensor.
const TENSOR: usize = 1 << 20;

fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default: &str| {
        arguments
            .get(index)
            .cloned()
            .unwrap_or_else(|| default.to_owned())
    };
    let folder = tempfile::tempdir_in(argument(0, "."))?;
    let bytes = argument(1, "1024").parse::<usize>()? << 20;
    let rounds: u64 = argument(2, "3").parse()?;
    let mut store: Arc<dyn Store> = Arc::new(LocalStore::new(folder.path().join("store")));
    if argument(3, "plain") == "encrypted" {
        store = Arc::new(Encrypted::new(store, MasterKey::generate()?));
    }
    let elements = bytes / 4;
    let lengths = vec![TENSOR; elements / TENSOR];
    let layout = StateLayout {
        tensors: lengths
            .iter()
            .enumerate()
            .map(|(index, &n)| TensorEntry::f32(format!("t{index}"), &[n], Role::Parameter))
            .collect(),
    };
    let vector = StateVector::of_layout("weights", &layout, &Arena::new(lengths.iter().copied()))?;
    let mut bench = Bench {
        values: (0..elements as u32).map(f32::from_bits).collect(),
        into: vec![0.0; elements],
        vectors: [vector],
        folder: folder.path(),
        store,
    };
    println!("seconds for {} MiB (GB/s)", bytes >> 20);
    println!(
        "{:>14}{:>14}{:>14}{:>14}{:>14}{:>14}{:>14}",
        "write+fsync", "copy", "hash", "write", "save", "read", "load"
    );
    let fence = Lineage::claim_next(&*bench.store, Generation(0), Step(0), "run `test`")?;
    let mut saver = Saver::start(Arc::clone(&bench.store), bytes)?;
    for round in 0..rounds {
        // Alternating order, because the second writer may find the disk still busy.
        let (plain, saved);
        if round % 2 == 0 {
            plain = bench.plain_write()?;
            saved = bench.save(&mut saver, fence, round)?;
        } else {
            saved = bench.save(&mut saver, fence, round)?;
            plain = bench.plain_write()?;
        }
        let read = bench.plain_read()?;
        let load = bench.load(round)?;
        retain(&bench.store, &LAST)?;
        for seconds in [plain, saved[0], saved[1], saved[2], saved[3], read, load] {
            print!("{seconds:>7.2} ({:4.1})", bytes as f64 / 1e9 / seconds);
        }
        println!();
    }
    Ok(())
}

struct Bench<'a> {
    values: Vec<f32>,
    into: Vec<f32>,
    vectors: [StateVector; 1],
    folder: &'a Path,
    store: Arc<dyn Store>,
}

impl Bench<'_> {
    /// Returns the seconds of writing the same bytes from the same memory with `fsync`.
    fn plain_write(&self) -> Result<f64, BoxError> {
        let start = Instant::now();
        let mut file = File::create(self.folder.join("plain"))?;
        for piece in bytemuck::cast_slice::<f32, u8>(&self.values).chunks(4 << 20) {
            file.write_all(piece)?;
        }
        file.sync_all()?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn plain_read(&mut self) -> Result<f64, BoxError> {
        let path = self.folder.join("plain");
        let start = Instant::now();
        File::open(&path)?.read_exact(bytemuck::cast_slice_mut(&mut self.into))?;
        let seconds = start.elapsed().as_secs_f64();
        std::fs::remove_file(path)?;
        Ok(seconds)
    }

    /// Returns the seconds of copying, hashing and writing, and from the call to the published manifest.
    fn save(
        &self,
        saver: &mut Saver,
        fence: ronde_checkpoint::Fence,
        round: u64,
    ) -> Result<[f64; 4], BoxError> {
        let start = Instant::now();
        let copied = saver.begin(&SaveRequest {
            step: Step(round),
            fence,
            rank: Rank(0),
            world_size: WorldSize::ONE,
            vectors: &self.vectors,
            slices: &[Slice::f32("weights", 0, &self.values)],
        })?;
        let part = saver.wait(Duration::from_secs(600))?;
        let (hashing, writing) = (part.hashing_s, part.writing_s);
        let what = PublishRequest {
            run: "speed",
            step: Step(round),
            epoch: Epoch(0),
            fence,
            world_size: WorldSize::ONE,
            identity: &PlanIdentity::default(),
            signature: &DataSignature::default(),
            vectors: &self.vectors,
            cursor: b"",
            saved_unix_ms: 0,
        };
        publish(&*self.store, &what, &[part])?;
        Ok([
            copied.seconds,
            hashing,
            writing,
            start.elapsed().as_secs_f64(),
        ])
    }

    fn load(&mut self, round: u64) -> Result<f64, BoxError> {
        let start = Instant::now();
        let checkpoint = Checkpoint::open(Arc::clone(&self.store), Step(round))?;
        let into = bytemuck::cast_slice_mut(&mut self.into);
        let request = ReadRequest {
            vector: "weights",
            start: 0,
            into,
        };
        checkpoint.read_into(&mut [request], 2)?;
        let seconds = start.elapsed().as_secs_f64();
        let same = self
            .into
            .iter()
            .zip(&self.values)
            .all(|(a, b)| a.to_bits() == b.to_bits());
        if !same {
            return Err("the loaded values differ from the saved ones".into());
        }
        Ok(seconds)
    }
}
