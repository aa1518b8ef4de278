//! A fuzz target without a fuzzer: it runs inputs from files, with any Rust compiler.

use std::env;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs the target on the files of the command line, or on its corpus. Fails if an input fails, if
/// there is none, or if they contain no operation.
pub fn main(target: &str, run: impl Fn(&[u8]) -> usize) -> ExitCode {
    let named: Vec<_> = env::args_os().skip(1).map(PathBuf::from).collect();
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

struct Replayed {
    inputs: usize,
    operations: usize,
    failures: usize,
}

fn replay(files: &[PathBuf], run: impl Fn(&[u8]) -> usize) -> io::Result<Replayed> {
    let mut replayed = Replayed { inputs: files.len(), operations: 0, failures: 0 };
    for file in files {
        let bytes = fs::read(file).map_err(|error| with_path(file, &error))?;
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

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
