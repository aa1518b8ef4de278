//! `wheellock watch`: a line for each change of a lock.

use std::error::Error;
use std::io;
use std::process;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use wheellock::Wait;

use crate::arguments::Watch;
use crate::exit;
use crate::output::{is_broken_pipe, say};
use crate::report;
use crate::server;

/// Prints each change of the lock until nobody reads the output, and returns the exit code. A
/// signal ends the process.
pub(crate) fn watch(watch: &Watch) -> Result<u8, Box<dyn Error>> {
    let client = server::connect(&watch.server, None)?;
    // An unchanged lock causes no output, so no write would detect a closed pipe.
    end_with_the_reader()?;
    let mut status = client.status(&watch.name)?;
    loop {
        match say(&if watch.json { report::json(&status)? } else { report::line(&status) }) {
            Err(error) if is_broken_pipe(&error) => return Ok(exit::SUCCESS),
            said => said?,
        }
        if let Some(next) = client.next_change(&status, Wait::forever())? {
            status = next;
        }
    }
}

/// Starts a thread to end the process when the reader of the standard output is gone.
pub(crate) fn end_with_the_reader() -> io::Result<()> {
    thread::Builder::new().name("reader".to_owned()).spawn(wait_for_the_end_of_the_reader).map(drop)
}

fn wait_for_the_end_of_the_reader() {
    let output = io::stdout();
    loop {
        // Without requested events, `poll` returns only for an error or a hang-up.
        let mut outputs = [PollFd::new(&output, PollFlags::empty())];
        match poll(&mut outputs, None) {
            Ok(_) => process::exit(exit::SUCCESS.into()),
            Err(rustix::io::Errno::INTR) => {}
            // The next write detects the closed pipe instead.
            Err(_) => return,
        }
    }
}
