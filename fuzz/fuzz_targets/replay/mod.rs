//! A fuzz target without a fuzzer: it runs inputs from files, or random ones, with any Rust
//! compiler.

use std::env;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs the target on the files of the command line, or on its corpus. Fails if an input fails, if
/// there is none, or if they contain no operation. With `--random OPERATIONS SEED` it runs random
/// inputs until they had so many operations: one of eight is random bytes, the others are inputs of
/// the corpus that were changed at random. With `--random OPERATIONS SEED LONGEST` each input is a
/// random part of one of these, of so many bytes at most.
pub fn main(target: &str, run: impl Fn(&[u8]) -> usize) -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    if let Some((first, numbers)) = words.split_first()
        && first == "--random"
    {
        return run_random(target, numbers, run);
    }
    let named: Vec<_> = words.into_iter().map(PathBuf::from).collect();
    let files = if named.is_empty() { corpus(target) } else { Ok(named) };
    let outcome = files.and_then(|files| replay(&files, run));
    match outcome {
        Ok(Replayed { inputs, operations, failures: 0 }) if operations > 0 => {
            println!("{target}: {inputs} inputs, {operations} operations, no difference");
            ExitCode::SUCCESS
        }
        Ok(Replayed { inputs, operations, failures }) => {
            eprintln!("{target}: {failures} of {inputs} inputs failed, {operations} operations");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{target}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The length of an input of random bytes.
const RANDOM_LEN: usize = 4096;

/// Runs random inputs. Each has a seed of its own, the next number, and one that fails is written
/// to a file.
fn run_random(target: &str, numbers: &[String], run: impl Fn(&[u8]) -> usize) -> ExitCode {
    let numbers: Vec<u64> = numbers.iter().filter_map(|word| word.parse().ok()).collect();
    let (operations, first_seed, longest) = match numbers[..] {
        [operations, seed] => (operations, seed, None),
        [operations, seed, longest] => (operations, seed, usize::try_from(longest).ok()),
        _ => {
            eprintln!("{target} --random OPERATIONS SEED [LONGEST]");
            return ExitCode::FAILURE;
        }
    };
    let read_all = |files: Vec<PathBuf>| files.iter().map(|file| read(file)).collect();
    let corpus: Vec<Vec<u8>> = match corpus(target).and_then(read_all) {
        Ok(corpus) => corpus,
        Err(error) => {
            eprintln!("{target}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (mut done, mut seed) = (0, first_seed);
    while done < operations {
        let bytes = random_input(seed, &corpus, longest);
        // Nothing of a run is used after a panic.
        let Ok(count) = catch_unwind(AssertUnwindSafe(|| run(&bytes))) else {
            let path = format!("{target}-{seed}.input");
            let written = fs::write(&path, &bytes);
            eprintln!("{target}: seed {seed} failed after {done} operations; {path}: {written:?}");
            return ExitCode::FAILURE;
        };
        done += count as u64;
        seed += 1;
    }
    println!("{target}: seeds {first_seed} to {}, {done} operations, no difference", seed - 1);
    ExitCode::SUCCESS
}

fn random_input(seed: u64, corpus: &[Vec<u8>], longest: Option<usize>) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes = whole_input(seed, &mut random, corpus);
    if let Some(longest) = longest {
        let from = random.below(bytes.len() + 1);
        let until = (from + random.below(longest + 1)).min(bytes.len());
        bytes = bytes[from..until].to_vec();
    }
    bytes
}

fn whole_input(seed: u64, random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    if seed.is_multiple_of(8) || corpus.is_empty() {
        return (0..RANDOM_LEN / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    }
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(16)).min(bytes.len());
        match random.below(4) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            2 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len() + 1);
                let until = (from + random.below(16)).min(other.len());
                bytes.splice(at..end, other[from..until].iter().copied());
            }
            _ => bytes[at..end].iter_mut().for_each(|byte| *byte = random.next().to_le_bytes()[0]),
        }
    }
    bytes
}

/// The numbers of splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below this one, which is not zero.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap_or(0)
    }
}

struct Replayed {
    inputs: usize,
    operations: usize,
    failures: usize,
}

fn replay(files: &[PathBuf], run: impl Fn(&[u8]) -> usize) -> io::Result<Replayed> {
    let mut replayed = Replayed { inputs: files.len(), operations: 0, failures: 0 };
    for file in files {
        let bytes = read(file)?;
        // Nothing of a run is used after a panic.
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&bytes)));
        if let Ok(operations) = outcome {
            replayed.operations += operations;
        } else {
            eprintln!("{} failed", file.display());
            replayed.failures += 1;
        }
    }
    Ok(replayed)
}

/// The files of the corpus, by name.
fn corpus(target: &str) -> io::Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files = fs::read_dir(&folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>())
        .map_err(|error| with_path(&folder, &error))?;
    files.sort_unstable();
    Ok(files)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).map_err(|error| with_path(path, &error))
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
