//! What only a client in a cluster sends, and faults of its locks at a node.

use wheellock::Error;
use wheellock_fixture::Fault as ProxyFault;

use super::connections::{connect, subscribe, unsubscribe};
use super::locks::{drop_guard, hold, hold_knowing, take};
use super::{Row, answered, release};
use crate::cell_run::{CellRun, Returned};
use crate::faults::Fault;
use crate::holding::RivalKind;
use crate::injected_fault::elsewhere;
use crate::sends::Sends::{Command, Script};
use crate::servers::{Endpoint, Kind};

const FAMILY: &str = "In a cluster";

pub(super) const ROWS: &[Row] = &[
    Row::new((FAMILY, "who serves what", "Client::connect"), Command("CLUSTER SLOTS"), connect)
        .with(Kind::InCluster)
        .on_a_fresh_connection(),
    Row::new((FAMILY, "how to send messages", "Client::connect"), Command("PUBSUB"), connect)
        .with(Kind::InCluster)
        .on_a_fresh_connection(),
    Row::new((FAMILY, "connect", "Client::connect"), Command("TIME"), connect)
        .requests(2)
        .with(Kind::InCluster)
        .on_a_fresh_connection(),
    subscribe(FAMILY, "SSUBSCRIBE").with(Kind::InCluster),
    unsubscribe(FAMILY, "SUNSUBSCRIBE").with(Kind::InCluster),
    Row::new((FAMILY, "acquire", "Lock::try_lock"), Script("acquire"), take)
        .rival(RivalKind::Lock)
        .with(Kind::InCluster),
    Row::new((FAMILY, "redirected acquire", "Lock::try_lock"), Command("ASKING"), ask)
        .rival(RivalKind::Lock)
        .with(Kind::InCluster)
        .at_the_other_door()
        .on_a_fresh_connection(),
    Row::new((FAMILY, "release", "LockGuard::unlock"), Script("release"), release)
        .prepare(hold)
        .rival(RivalKind::Lock)
        .with(Kind::InCluster),
    Row::new((FAMILY, "drop", "dropping the guard"), Script("release"), drop_guard)
        .prepare(hold_knowing)
        .rival(RivalKind::Lock)
        .with(Kind::InCluster),
    Row::new((FAMILY, "renew", "the watchdog"), Script("renew"), |run| Ok(run.watch()))
        .prepare(hold)
        .rival(RivalKind::Lock)
        .with(Kind::InCluster)
        .in_the_background(),
    Row::new((FAMILY, "is it locked", "Lock::is_locked"), Command("EXISTS"), |run| {
        run.client.lock(&run.name).is_locked().map(answered)
    })
    .prepare(hold)
    .rival(RivalKind::Lock)
    .with(Kind::InCluster),
];

/// Takes a lock that is on its way: the node that was asked sends every try to the other endpoint.
fn ask(run: &CellRun<'_>) -> Result<Returned, Error> {
    let answer = Fault::Ask.answer(run.place.kind, &elsewhere(run, Endpoint::Other));
    let proxy_fault = ProxyFault::AnswerInstead(answer.unwrap_or_default().into_bytes());
    let on_its_way = run.proxies.server.on(Script("acquire").matcher(), proxy_fault).always();
    let taken = take(run);
    on_its_way.withdraw();
    taken
}
