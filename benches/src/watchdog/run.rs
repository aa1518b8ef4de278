//! Running a case: the holder in a process of its own, on a server of its own.

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use wheellock_fixture::{Proxy, RawConnection, Server};

use crate::harness::child::Child;
use crate::harness::clock::{now, sleep};
use crate::harness::figures::Case;
use crate::harness::measured::READY;
use crate::harness::report::{Lines, measuring_process, split_floor};
use crate::watchdog::Watchdog;
use crate::watchdog::case::HolderKind;
use crate::watchdog::measures::{
    FLAT_OUT, FOREGROUND, HELD, MILLION, interval, lease, longer_round_trip, settle, window,
};
use crate::watchdog::server_load::ServerLoad;

/// No acquiring of all locks takes this long, and no end of a process after its window.
const LIMIT: Duration = Duration::from_secs(240);
/// The limit of the workload with a million locks, which are acquired again after the window.
const LONGEST: Duration = Duration::from_secs(900);
/// How much longer the holder runs than the client that it may disturb.
const LONGER: Duration = Duration::from_secs(2);

impl Watchdog {
    /// One process from its start to its end. Returns its line of numbers, and the floor's.
    pub(super) fn run_case(
        &self,
        workload: &str,
        case: Case<HolderKind>,
    ) -> io::Result<Lines<HolderKind>> {
        let server = Server::start();
        let proxy = longer_round_trip(workload).map(|trip| (Proxy::start(server.address()), trip));
        let address = proxy.as_ref().map_or(server.address(), |(proxy, _)| proxy.address());
        let mut child = Child::start(&mut self.command(workload, case, address)?)?;
        let limit = if workload == MILLION { LONGEST } else { LIMIT };
        let first = child.line(limit)?;
        if first != READY {
            return Err(io::Error::other(format!("its first line is {first:?}")));
        }
        // Only now: to acquire one lock after the other would take a quarter of an hour.
        if let Some((proxy, trip)) = &proxy {
            proxy.delay_requests(*trip / 2);
            proxy.delay_replies(*trip / 2);
        }
        sleep(settle(workload, case.size));
        let mut observer = server.connection();
        // A million are renewed all the time.
        if workload != FLAT_OUT && workload != MILLION {
            wait_for_a_gap(&mut observer, interval(workload, case.size));
        }
        let (start, before) = (now(), ServerLoad::read(&mut observer));
        child.send("go")?;
        let window = window(workload, case.size, self.quick);
        if workload == FOREGROUND {
            return Ok(vec![(case, other_client(address, window)?)]);
        }
        let line = child.line(window + limit)?;
        if workload == MILLION {
            // It has read what the server counted: later all locks are released.
            return Ok(vec![(case, line)]);
        }
        let (load, took) = (ServerLoad::read(&mut observer).since(before), now() - start);
        Ok(if workload == FLAT_OUT {
            split_floor(&line, case, HolderKind::Floor)
        } else {
            vec![(case, with_load(&line, case, load, took))]
        })
    }

    fn command(
        &self,
        workload: &str,
        case: Case<HolderKind>,
        address: SocketAddr,
    ) -> io::Result<Command> {
        let mut window = window(workload, case.size, self.quick);
        if workload == FOREGROUND {
            window += LONGER;
        }
        let lease = lease(workload, case.size).as_millis();
        let what = [address.to_string(), case.size.to_string(), lease.to_string()];
        let window = window.as_millis().to_string();
        if let (HolderKind::Redisson, Some(redisson)) = (case.subject, &self.redisson) {
            let mut command = redisson.command("RedissonReport", "1g");
            command.args(what).arg(window);
            return Ok(command);
        }
        let name = match workload {
            FLAT_OUT | MILLION => workload,
            _ => HELD,
        };
        let [address, size, lease] = what;
        let holder = case.subject.word().to_owned();
        measuring_process(&[name.to_owned(), holder, address, size, lease, window])
    }
}

/// Waits until renewals have paused for a while, or goes on if they do not. Some renew everything
/// in one burst. A window that begins within one would have a burst too many or too few.
fn wait_for_a_gap(observer: &mut RawConnection, interval: Duration) {
    let limit = now() + interval * 2;
    let (mut renewals, mut last) = (ServerLoad::read(observer).renewals, None);
    while now() < limit {
        sleep(interval / 40);
        let read = ServerLoad::read(observer).renewals;
        if read > renewals {
            renewals = read;
            last = Some(now());
        } else if last.is_some_and(|last| now() - last > interval / 5) {
            return;
        }
    }
}

/// A process that acquires and releases a lock of its own, while the holder renews.
fn other_client(address: SocketAddr, window: Duration) -> io::Result<String> {
    let (holder, millis) = (HolderKind::Wheellock.word(), window.as_millis().to_string());
    let address = address.to_string();
    let words = [FOREGROUND, holder, &address, "1", "30000", &millis].map(str::to_owned);
    Child::start(&mut measuring_process(&words)?)?.line(window + LIMIT)
}

/// Adds what the server counted in the same time.
fn with_load(line: &str, case: Case<HolderKind>, load: ServerLoad, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    let of = |name: &str| {
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(name));
        value.and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let busy = (of("percent=") - of("idle=")) / 100.0 * seconds;
    let held = u32::try_from(case.size).map_or(f64::NAN, f64::from);
    let lost = of("lost=").max(held - load.keys);
    let own = line.split_whitespace().filter(|word| !word.starts_with("lost="));
    let mut text = own.collect::<Vec<_>>().join(" ");
    // Writing to a string does not fail.
    write!(
        text,
        " lost={lost} renewals={:.3} server-percent={:.4}",
        load.renewals / seconds,
        100.0 * load.processor / seconds,
    )
    .ok();
    if load.renewals > 0.0 {
        write!(
            text,
            " server-each={:.4} keys={:.3}",
            load.script_micros / load.renewals,
            load.renewals / load.scripts,
        )
        .ok();
        // If the process used more while it was idle, the difference says nothing.
        if busy > 0.0 {
            write!(text, " client-each={:.4}", busy * 1e6 / load.renewals).ok();
        }
    }
    text
}
