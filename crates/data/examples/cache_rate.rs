//! Measures the rate of reading cached files and of `cat` for the same bytes; see `benchmarks/README.md`.
//!
//! ```sh
//! cargo build --release -p ronde-data --features full --example cache_rate
//! target/release/examples/cache_rate PATTERN FOLDER [sealed]
//! ```
//!
//! Reads the files of a remote `PATTERN` into the cache in `FOLDER` if they are missing, then alternates: each file from
//! start to end in pieces of 1 MiB through the cache, and `cat` of the cache's own files to `/dev/null`.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program that measures"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use ronde_data::DataError;
use ronde_data::cache::{Cache, CacheSettings};
use ronde_data::source::{FolderNames, SourceFile, expand};
use ronde_store::{MasterKey, Opener, RemoteSettings};

const ROUNDS: usize = 5;
const PIECE: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pattern, folder, rest @ ..] = &arguments[..] else {
        return Err("cache_rate PATTERN FOLDER [sealed]".into());
    };
    let opener = Opener::new(RemoteSettings::default());
    let patterns = std::slice::from_ref(pattern);
    let files = expand(patterns, Path::new("."), &opener, FolderNames::All)?.files;
    let bytes: u64 = files.iter().map(SourceFile::bytes).sum();
    // Any key that is the same for each run.
    let key = rest
        .first()
        .map(|_| MasterKey::parse(&[7; 32]))
        .transpose()?;
    let settings = CacheSettings {
        key,
        ..CacheSettings::default()
    };
    let open = || Cache::open(folder, settings.clone());
    let start = Instant::now();
    let cache = open()?;
    cache.fill(&files, &|_| {})?;
    let remote = cache.counters().remote_bytes;
    println!("filled: {}", rate(remote, start));
    let pages = pages(&Path::new(folder).join("v1/pages"))?;
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        // A new cache, so that every page is verified.
        let cache = open()?;
        read(&cache, &files)?;
        let cached = start.elapsed();
        println!("cache:  {}", rate(bytes, start));
        assert_eq!(cache.counters().remote_bytes, 0, "it was filled");
        let start = Instant::now();
        let cat = Command::new("cat")
            .args(&pages)
            .stdout(Stdio::null())
            .status()?;
        assert!(cat.success(), "cat reads them");
        ratios.push(start.elapsed().as_secs_f64() / cached.as_secs_f64());
        println!("cat:    {}", rate(bytes, start));
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "cache / cat: {:.2} (median of {ROUNDS})",
        ratios[ROUNDS / 2]
    );
    Ok(())
}

fn read(cache: &Arc<Cache>, files: &[SourceFile]) -> Result<(), DataError> {
    let mut piece = vec![0; PIECE as usize];
    for file in files {
        let object = cache.object(file)?;
        let mut at = 0;
        while at < object.bytes() {
            let bytes = PIECE.min(object.bytes() - at);
            object.read_at(at, &mut piece[..bytes as usize])?;
            at += bytes;
        }
    }
    Ok(())
}

fn rate(bytes: u64, since: Instant) -> String {
    let seconds = since.elapsed().as_secs_f64();
    format!("{:.0} MB/s", bytes as f64 / seconds / 1e6)
}

fn pages(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for folder in std::fs::read_dir(folder)? {
        for page in std::fs::read_dir(folder?.path())? {
            pages.push(page?.path());
        }
    }
    Ok(pages)
}
