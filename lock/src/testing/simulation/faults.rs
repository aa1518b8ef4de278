//! What goes wrong around the clients.

use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::testing::modelled::process::{Process, after, note, pause};
use crate::testing::modelled::sync::{SystemClock, below, sleep};
use crate::testing::simulation::network::{Direction, Net};
use crate::testing::simulation::server::Server;

/// A time in which no thread of a client ran.
pub(crate) struct Pause {
    client: u8,
    from: Instant,
    until: Instant,
}

pub(crate) const FAULTS_BEGIN_WITHIN: Duration = Duration::from_millis(1600);

/// Whole milliseconds below `limit`.
fn millis_below(limit: usize) -> Duration {
    Duration::from_millis(below(limit).try_into().unwrap())
}

pub(crate) fn one_of<T: Copy>(choices: &[T]) -> T {
    choices[below(choices.len())]
}

/// Runs `disturb` this number of times, each at a random time.
pub(crate) fn plan_faults(faults: usize, disturb: impl Fn() + Clone + 'static) {
    for _ in 0..faults {
        after(Duration::from_millis(40) + millis_below(1500), disturb.clone());
    }
}

/// Something goes wrong, at one of the servers or for a client. Returns the pause of a client.
pub(crate) fn disturb(nets: &[Net], clients: u8) -> Option<Pause> {
    let net = if let [net] = nets { net } else { &nets[below(nets.len())] };
    let now = SystemClock.now();
    let client = u8::try_from(below(clients.into())).unwrap();
    let short = now + one_of(&[3, 30, 200]) * Duration::from_millis(1);
    let long = now + Duration::from_millis(200) + millis_below(12_000);
    let until = if below(4) == 0 { long } else { short };
    let lasts = until.saturating_duration_since(now);
    let note = |text: String| note(|| format!("FAULT at server {}: {text}", net.port()));
    match below(10) {
        0 | 1 => {
            note(format!("messages of client {client} are slow for {lasts:?}"));
            net.slow_down(client, one_of(&[20, 400, 1500]) * Duration::from_millis(1), until);
        }
        2 => {
            note(format!("client {client} is cut off for {lasts:?}"));
            net.part(client, until);
        }
        3 | 4 => {
            let direction = one_of(&[Direction::ToServer, Direction::ToClient]);
            let bytes = below(400);
            note(format!("a connection of {client} ends after {bytes} {direction:?}"));
            net.cut(client, direction, bytes);
            // It may be a subscription, on which nothing is sent for long.
            net.disturb(now + Duration::from_secs(3));
        }
        5 => {
            note(format!("the server hangs for {lasts:?}"));
            net.hang(until);
        }
        6 => {
            let since = now.checked_sub(one_of(&[0, 1, 20, 500]) * Duration::from_millis(1));
            let since = since.filter(|_| below(3) > 0);
            note(match since {
                None => format!("the server restarts without its keys in {lasts:?}"),
                Some(since) => {
                    let lost = now.saturating_duration_since(since);
                    format!("a server without the last {lost:?} takes over in {lasts:?}")
                }
            });
            net.restart(until, since);
        }
        7 => {
            let by = one_of(&[-10_000, -500, 500, 2_000, 10_000]);
            note(format!("the server's clock is set by {by} ms"));
            net.set_clock(by);
        }
        8 => {
            note(format!("client {client} is paused for {lasts:?}"));
            pause(Process(client), lasts);
            nets.iter().for_each(|net| net.disturb(until));
            return Some(Pause { client, from: now, until });
        }
        _ => {
            note("the server forgets its scripts".to_owned());
            net.with_server(Server::flush_scripts);
            net.disturb(now);
        }
    }
    None
}

/// How long the client was paused since then.
pub(crate) fn paused(pauses: &[Pause], client: u8, since: Instant) -> Duration {
    let own = pauses.iter().filter(|pause| pause.client == client && pause.until > since);
    own.map(|pause| pause.until.saturating_duration_since(pause.from)).sum()
}

/// Sleeps until nothing is wrong any more.
pub(crate) fn sleep_until_undisturbed(nets: &[Net]) {
    let left = || {
        let until = nets.iter().filter_map(Net::disturbed_until).max()?;
        Some(until.saturating_duration_since(SystemClock.now())).filter(|left| !left.is_zero())
    };
    while let Some(left) = left() {
        sleep(left);
    }
}
