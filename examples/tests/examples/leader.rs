//! The example `leader` as its users run it: three processes, of which one is killed, one is
//! stopped, and one resigns.

#![expect(clippy::panic, reason = "a test that meets what it cannot read fails, and says why")]

use std::io::Write as _;
use std::process::ChildStdin;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use wheellock::Client;
use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::support::{PATIENCE, example};

/// A candidate, and what it has said.
struct Candidate {
    process: TestProcess,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Candidate {
    /// Starts one, and waits until it is a candidate.
    fn start(server: &Server) -> Self {
        let arguments = ["--redis", &server.url(), "--watchdog", "1.5", "scheduler"];
        let (process, input, lines) =
            TestProcess::spawn_for_talk(&mut example("leader", &arguments));
        let candidate = Self { process, input, lines };
        candidate.says("follows");
        candidate
    }

    /// The rest of its next line, which begins with this.
    fn says(&self, begin: &str) -> String {
        let line = self.lines.recv_timeout(PATIENCE);
        let line = line.unwrap_or_else(|_| panic!("no {begin}: {}", self.process.output()));
        let rest = line.strip_prefix(begin);
        rest.unwrap_or_else(|| panic!("{line} is not {begin}")).to_owned()
    }

    fn leads(&self) -> u64 {
        let term = self.says("leads in term ");
        term.parse().unwrap_or_else(|_| panic!("{term} is no number"))
    }

    fn tell(&mut self, line: &str) {
        let told = writeln!(self.input, "{line}");
        told.unwrap_or_else(|error| panic!("it cannot be told: {error}"));
    }
}

/// Waits until so many candidates wait for the lead.
fn wait_for_candidates(server: &Server, waiting: i64) {
    let channel = "redisson_lock__channel:{scheduler}";
    wait_until("the candidates wait", PATIENCE, || {
        server.command(&["PUBSUB", "NUMSUB", channel]).array()[1].integer() == waiting
    });
}

#[test]
fn a_leader_that_is_killed_stopped_or_resigns_is_followed() {
    let server = Server::start();
    let mut first = Candidate::start(&server);
    let mut terms = vec![first.leads()];
    let mut second = Candidate::start(&server);
    wait_for_candidates(&server, 1);

    // Killed: its lease has to end.
    first.process.kill();
    terms.push(second.leads());

    // Stopped for longer than the lease: it finds that when it goes on.
    let mut third = Candidate::start(&server);
    wait_for_candidates(&server, 1);
    second.process.pause();
    terms.push(third.leads());
    // What a candidate asks that finds the lead taken.
    let refused = server.command_calls("pttl");
    second.process.resume();
    second.says("lost: ");
    wait_until("it is a candidate again", PATIENCE, || server.command_calls("pttl") > refused);

    // Resigned: the other one, which waits, comes first.
    third.tell("resign");
    third.says("resigned");
    terms.push(second.leads());
    assert!(terms.is_sorted_by(|earlier, later| earlier < later), "{terms:?}");

    // An observer asks the server.
    let observer = Client::connect(&server.url());
    let observer = observer.unwrap_or_else(|error| panic!("no client: {error}"));
    let leader = observer.leader_election("scheduler").leader();
    assert_eq!(leader.map(|leader| leader.map(|leader| leader.term)), Ok(terms.last().copied()));

    // It leads again, after the second in which others come first: once it is a candidate again, it
    // is sure to come before the one that resigns.
    let refused = server.command_calls("pttl");
    wait_until("it is a candidate again", PATIENCE, || server.command_calls("pttl") > refused);
    second.tell("resign");
    second.says("resigned");
    assert!(third.leads() > terms[3]);
    assert!(observer.shutdown(Duration::from_secs(5)).unreleased.is_empty());
}
