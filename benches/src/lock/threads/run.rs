//! Running a case: each client in a process of its own, on a server of its own.

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::process::Command;
use std::thread::{self, available_parallelism};
use std::time::Duration;

use wheellock_fixture::{RawConnection, Server};

use crate::harness::child::Child;
use crate::harness::clock::{now, sleep};
use crate::harness::figures::{Case, median};
use crate::harness::machine::pin;
use crate::harness::measured::{BEGUN, OVER, READY};
use crate::harness::report::{Lines, measuring_process, split_floor};
use crate::lock::threads::Threads;
use crate::lock::threads::measures::{
    HASTY, HASTY_STALL, HOT, HOT_APART, HOT_WORK, LONGER_TRIP, NAMES, NAMES_APART, NAMES_WORK,
    OWN_CODE, PINNED, PROCESSES, SECTION, SEVERAL, STALL, STRANGER_JAVA, STRANGER_RUST, TRIP,
    UNPINNED, times,
};
use crate::lock::threads::relay::Relay;
use crate::lock::threads::subject::ClientKind;

/// No start of a process takes this long, with a thousand threads that queue up one by one, and no
/// end after its window.
const LIMIT: Duration = Duration::from_secs(60);
/// The core of what is pinned.
const CORE: &str = "0";
/// The core of clients that are pinned apart from their server.
const OTHER_CORE: &str = "1";
const PINGS: usize = 200;

/// What the processes measured of themselves, and the server's processor time meanwhile.
struct Measured {
    lines: Vec<String>,
    server_seconds: f64,
}

impl Threads {
    pub(super) fn run_case(
        &self,
        workload: &str,
        case: Case<ClientKind>,
    ) -> io::Result<Lines<ClientKind>> {
        let server = Server::start();
        let (kind, address) = (case.subject, server.address());
        match workload {
            PINNED | UNPINNED => {
                let mut command = self.command(workload, kind, address, 1, Duration::ZERO)?;
                if workload == PINNED {
                    pin(&server, CORE);
                    command = pinned(&command, CORE);
                }
                let line = measure(&server, &mut [command])?.only();
                return Ok(match kind {
                    ClientKind::Wheellock => split_floor(&line, case, ClientKind::Raw),
                    ClientKind::Redisson => vec![(case, format!("pair={}", word(&line, "p50")))],
                    _ => vec![(case, line)],
                });
            }
            TRIP => {
                let relay = Relay::start(address, LONGER_TRIP)?;
                let trip = ping_micros(relay.address())?;
                let command =
                    self.command(NAMES, kind, relay.address(), case.size, Duration::ZERO)?;
                let line = measure(&server, &mut [command])?.only();
                return Ok(vec![(case, format!("{line} trip={trip:.3}"))]);
            }
            STRANGER_RUST => {
                let other = if kind == ClientKind::Old { kind } else { ClientKind::Wheellock };
                return self.beside(&server, case, other);
            }
            STRANGER_JAVA => return self.beside(&server, case, ClientKind::Redisson),
            PROCESSES => return self.several(&server, case),
            _ => (),
        }
        let section = match workload {
            HOT_WORK => SECTION,
            NAMES_WORK => OWN_CODE,
            _ => Duration::ZERO,
        };
        let (name, is_apart) = match workload {
            NAMES_APART => (NAMES, true),
            HOT_APART => (HOT, true),
            HOT_WORK => (HOT, false),
            NAMES_WORK => (NAMES, false),
            HASTY_STALL => (HASTY, false),
            other => (other, false),
        };
        let mut command = self.command(name, kind, address, case.size, section)?;
        if is_apart {
            if available_parallelism().map_or(1, NonZero::get) < 2 {
                return Ok(Vec::new());
            }
            pin(&server, CORE);
            command = pinned(&command, OTHER_CORE);
        }
        let measured = thread::scope(|scope| {
            if workload == HASTY_STALL {
                scope.spawn(|| stall(&server));
            }
            measure(&server, &mut [command])
        })?;
        let mut line = measured.lines.concat();
        let pairs = word(&line, "pairs") * times(workload, self.quick).window.as_secs_f64();
        // Writing to a string does not fail.
        write!(line, " server-each={:.4}", measured.server_seconds * 1e6 / pairs).ok();
        Ok(vec![(case, line)])
    }

    /// The threads alone, and then with a thread of another process beside them.
    fn beside(
        &self,
        server: &Server,
        case: Case<ClientKind>,
        other: ClientKind,
    ) -> io::Result<Lines<ClientKind>> {
        let hot =
            |kind, threads| self.command(HOT, kind, server.address(), threads, Duration::ZERO);
        let alone = measure(server, &mut [hot(case.subject, case.size)?])?.only();
        let both = [hot(case.subject, case.size)?, hot(other, 1)?];
        let lines = measure(server, &mut { both })?.lines;
        let [own, others] = &lines[..] else {
            return Err(io::Error::other("a process is missing"));
        };
        let (alone, pairs) = (word(&alone, "pairs"), word(own, "pairs"));
        let mut line = format!("pairs={pairs} alone={alone} share={:.3}", 100.0 * pairs / alone);
        for (name, own) in [
            ("other-p50", "wait-p50"),
            ("other-p99", "wait-p99"),
            ("other-max", "wait-max"),
            ("other-pairs", "pairs"),
        ] {
            // Writing to a string does not fail.
            write!(line, " {name}={}", word(others, own)).ok();
        }
        Ok(vec![(case, line)])
    }

    /// Several processes with as many threads each.
    fn several(&self, server: &Server, case: Case<ClientKind>) -> io::Result<Lines<ClientKind>> {
        let address = server.address();
        let command = |_| self.command(HOT, case.subject, address, case.size, Duration::ZERO);
        let mut commands = (0..SEVERAL).map(command).collect::<io::Result<Vec<_>>>()?;
        let lines = measure(server, &mut commands)?.lines;
        let all = |name| lines.iter().map(move |line| word(line, name));
        let least = all("pairs").fold(f64::INFINITY, f64::min);
        let (most, longest) =
            (all("pairs").fold(0.0, f64::max), all("wait-max").fold(0.0, f64::max));
        let pairs: f64 = all("pairs").sum();
        let line = format!("shares={} wait-max={longest} pairs={pairs}", most / least);
        Ok(vec![(case, line)])
    }

    fn command(
        &self,
        workload: &str,
        kind: ClientKind,
        address: SocketAddr,
        threads: usize,
        section: Duration,
    ) -> io::Result<Command> {
        let times = times(workload, self.quick);
        // An older build is what is measured, and knows nothing of others.
        let own = if kind == ClientKind::Old { ClientKind::Wheellock } else { kind };
        let words = [
            workload.to_owned(),
            own.word().to_owned(),
            address.to_string(),
            threads.to_string(),
            section.as_micros().to_string(),
            times.settle.as_millis().to_string(),
            times.window.as_millis().to_string(),
        ];
        let missing = |what| io::Error::other(format!("there is no {what}"));
        match kind {
            ClientKind::Redisson => {
                let java = self.redisson.as_ref().ok_or_else(|| missing("Redisson"))?;
                let mut command = java.command("RedissonThreads", "512m");
                command.args(words);
                Ok(command)
            }
            ClientKind::Old => {
                let program = self.old.as_ref().ok_or_else(|| missing("older build"))?;
                let mut command = Command::new(program);
                command.arg("--one").args(words);
                Ok(command)
            }
            ClientKind::Wheellock | ClientKind::Raw | ClientKind::Batch => {
                measuring_process(&words)
            }
        }
    }
}

impl Measured {
    /// The line of the only process.
    fn only(self) -> String {
        self.lines.concat()
    }
}

/// Starts the processes, lets all of them measure at once, and returns their lines.
fn measure(server: &Server, commands: &mut [Command]) -> io::Result<Measured> {
    let mut observer = server.connection();
    let mut children = commands.iter_mut().map(Child::start).collect::<io::Result<Vec<Child>>>()?;
    for child in &mut children {
        expect(child, READY)?;
    }
    for child in &mut children {
        child.send("go")?;
    }
    for child in &mut children {
        expect(child, BEGUN)?;
    }
    let before = server_seconds(&mut observer);
    for child in &mut children {
        expect(child, OVER)?;
    }
    let server_seconds = server_seconds(&mut observer) - before;
    let lines = children.iter_mut().map(|child| child.line(LIMIT));
    Ok(Measured { lines: lines.collect::<io::Result<_>>()?, server_seconds })
}

/// The server stands still for [`STALL`], well before the window: that begins [`AFTER_STALL`] later.
fn stall(server: &Server) {
    // The process connects and starts its threads meanwhile.
    sleep(STALL);
    server.pause();
    sleep(STALL);
    server.resume();
}

fn expect(child: &mut Child, word: &str) -> io::Result<()> {
    let line = child.line(LIMIT)?;
    if line == word {
        return Ok(());
    }
    Err(io::Error::other(format!("its line is {line:?} and not {word:?}")))
}

/// The number of this name in a line.
fn word(line: &str, name: &str) -> f64 {
    let numbers = line.split_whitespace().filter_map(|word| word.split_once('='));
    let mut own = numbers.filter(|(own, _)| *own == name);
    own.next().and_then(|(_, number)| number.parse().ok()).unwrap_or(f64::NAN)
}

/// The same command, on one core.
fn pinned(command: &Command, core: &str) -> Command {
    let mut pinned = Command::new("taskset");
    pinned.args(["--cpu-list", core]).arg(command.get_program()).args(command.get_args());
    pinned
}

/// The processor time of the whole server.
fn server_seconds(observer: &mut RawConnection) -> f64 {
    let text = observer.command(&["INFO", "cpu"]).text();
    let seconds = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse::<f64>().ok()).unwrap_or(f64::NAN)
    };
    seconds("used_cpu_user:") + seconds("used_cpu_sys:")
}

/// A round trip of the smallest command, in microseconds.
fn ping_micros(address: SocketAddr) -> io::Result<f64> {
    let mut connection = RawConnection::open(address)?;
    let mut samples = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let start = now();
        connection.try_command(&["PING"])?;
        samples.push((now() - start).as_secs_f64() * 1e6);
    }
    Ok(median(samples))
}
