//! A job that runs once: all processes call this for the same slot, and one of them does it.

use wheellock::{Client, Error, JobRun, RunOutcome};

pub(crate) fn run(client: &Client, slot: &str) -> Result<(), Error> {
    let job = client.job("everyday:report").with_max_attempts(3);
    match job.run_once(slot, write)? {
        RunOutcome::Ran(pages) => println!("job: {pages} pages"),
        RunOutcome::RanAlready => println!("job: was done before"),
        RunOutcome::RunningElsewhere => println!("job: runs elsewhere"),
        RunOutcome::AttemptsUsedUp => println!("job: was tried too often"),
        RunOutcome::Failed(error) => println!("job: may be tried again, {error}"),
        RunOutcome::Unrecorded { error, .. } => println!("job: may run again, {error}"),
    }
    Ok(())
}

/// A store that remembers the largest token refuses the page of a run of the past.
fn write(run: &JobRun<'_>) -> Result<u32, Error> {
    let pages = 3;
    for page in 1..=pages {
        run.check()?; // an error if another process may have begun it anew
        println!("job: page {page} with the token {}", run.token());
    }
    Ok(pages)
}
