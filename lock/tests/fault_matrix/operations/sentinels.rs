//! What only a client behind sentinels sends, and faults of its locks at the master.

use std::time::Instant;

use wheellock::Error;

use super::connections::{connect, subscribe};
use super::locks::{hold, take};
use super::{Row, release};
use crate::cell_run::{BETWEEN_TWO_LOOKS, CellRun, Returned};
use crate::common::{SOON, now, pause};
use crate::faults::Times;
use crate::holding::RivalKind;
use crate::sends::Sends::{Command, Script};
use crate::servers::Kind;

const FAMILY: &str = "Behind sentinels";

pub(super) const ROWS: &[Row] = &[
    ask("after which failover", "SENTINEL MASTER"),
    ask("who else watches", "SENTINEL SENTINELS"),
    ask("where is the master", "SENTINEL GET-MASTER-ADDR-BY-NAME"),
    Row::new((FAMILY, "hear of switches", "in the background"), Command("SUBSCRIBE"), hear)
        .requests(usize::MAX)
        .with(Kind::BehindSentinels)
        .at_the_other_door()
        .on_a_fresh_connection()
        .in_the_background(),
    Row::new((FAMILY, "is the sentinel there", "in the background"), Command("PING"), look)
        .requests(usize::MAX)
        .with(Kind::BehindSentinels)
        .at_the_other_door()
        .in_the_background(),
    Row::new((FAMILY, "connect", "Client::connect"), Command("TIME"), connect)
        .requests(usize::MAX)
        .with(Kind::BehindSentinels)
        .on_a_fresh_connection(),
    Row::new((FAMILY, "is it the master", "Client::connect"), Command("ROLE"), connect)
        .requests(usize::MAX)
        .with(Kind::BehindSentinels)
        .on_a_fresh_connection(),
    subscribe(FAMILY, "SUBSCRIBE").with(Kind::BehindSentinels).before(Command("ROLE")),
    Row::new((FAMILY, "acquire", "Lock::try_lock"), Script("acquire"), take)
        .rival(RivalKind::Lock)
        .before(Command("ROLE"))
        .with(Kind::BehindSentinels),
    Row::new((FAMILY, "release", "LockGuard::unlock"), Script("release"), release)
        .prepare(hold)
        .rival(RivalKind::Lock)
        .before(Command("ROLE"))
        .with(Kind::BehindSentinels),
    Row::new((FAMILY, "renew", "the watchdog"), Script("renew"), |run| Ok(run.watch()))
        .prepare(hold)
        .rival(RivalKind::Lock)
        .before(Command("ROLE"))
        .with(Kind::BehindSentinels)
        .in_the_background(),
];

/// A question to a sentinel.
const fn ask(name: &'static str, command: &'static str) -> Row {
    // The thread that follows the master asks too.
    Row::new((FAMILY, name, "Client::connect"), Command(command), connect)
        .requests(usize::MAX)
        .with(Kind::BehindSentinels)
        .at_the_other_door()
        .on_a_fresh_connection()
}

/// Connects, and waits until a sentinel is listened to, or the fault is over.
fn hear(run: &CellRun<'_>) -> Result<Returned, Error> {
    let subscribed = run.count(Command("SUBSCRIBE"));
    // The thread that listens subscribes while the client is still being built. A sentinel that
    // restarts at that moment has no answer for the client, so another is built.
    let mut built = run.builder().build();
    before(ends(run), || {
        if matches!(built, Err(Error::Unreachable { .. })) {
            built = run.builder().build();
        }
        built.is_ok()
    });
    let _client = built?;
    let heard = match run.times {
        // The client of the cell listens too.
        Times::First => before(ends(run), || run.place.servers().listeners() > 1),
        Times::Every => {
            // A client that receives it does not subscribe again. Another does, at the latest when
            // the fault is over.
            if !before(ends(run), || subscribed() > 1) {
                before(now() + SOON, || run.place.servers().listeners() > 1);
            }
            subscribed() < 2
        }
    };
    Ok(if heard { Returned::Done } else { Returned::Polls })
}

/// Waits until the sentinel is asked for a sign of life, and takes a lock.
fn look(run: &CellRun<'_>) -> Result<Returned, Error> {
    let asked = run.count(Command("PING"));
    before(ends(run), || asked() > 0);
    let guard = run.client.lock(&run.name).lock()?;
    guard.unlock()?;
    Ok(Returned::Done)
}

/// Until when a call in the background is looked at.
fn ends(run: &CellRun<'_>) -> Instant {
    match run.times {
        Times::First => now() + SOON,
        Times::Every => run.window_ends.get(),
    }
}

/// Whether a condition comes true before then.
fn before(end: Instant, mut condition: impl FnMut() -> bool) -> bool {
    while now() < end {
        if condition() {
            return true;
        }
        pause(BETWEEN_TWO_LOOKS);
    }
    false
}
