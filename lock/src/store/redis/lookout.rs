//! Who serves what in a cluster: found out before the first operation, and again whenever somebody has a reason.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use hashed_wheel::{Clock, SystemClock};

use super::address::Address;
use super::channels::Channels;
use super::cluster::{Shared, shares};
use super::connection::{Broken, Limit};
use super::redirection::Redirection;
use super::slot_map::Range;
use super::subscription::Elsewhere;
use super::topology::{ask_channels, ask_slots};
use crate::store::Failure;
use crate::value::ServerTime;

/// How long until nodes that serve nothing are looked at again.
const NEXT_PARTING: Duration = Duration::from_secs(5);

/// What a node has said of the cluster.
struct View {
    ranges: Vec<Range>,
    channels: Channels,
}

impl Shared {
    /// Asks, if nothing is known yet. The child of a fork begins so; others have connected.
    pub(super) fn know(&self, limit: &mut Limit) -> Result<(), Failure> {
        if self.members.read().channels().is_some() {
            return Ok(());
        }
        let left = limit.refresh().left().unwrap_or_default();
        let Some(_first) = self.first_look.try_lock_for(left) else {
            return Err(self.nobody());
        };
        if self.members.read().channels().is_some() {
            return Ok(());
        }
        self.look_around(limit).map(drop)
    }

    /// Has it found out anew who serves what, in the background. With `news`, something is known to have changed.
    pub(super) fn look_around_soon(&self, news: bool) {
        self.pace.ask(news, || {
            let Some(shared) = self.itself.upgrade() else { return false };
            let thread = thread::Builder::new().name("lock-cluster".to_owned());
            thread.spawn(move || shared.keep_looking()).is_ok()
        });
    }

    /// The thread.
    fn keep_looking(self: Arc<Self>) {
        let mut longest = None;
        while self.pace.wait(longest) {
            // What is known already need not wait for the answer.
            self.resettle();
            let found_news = self.look_around(&mut Limit::after(self.command_timeout));
            let all_settled = self.resettle();
            for node in self.nodes() {
                node.subscription().wish_again();
            }
            longest = self.part().then_some(NEXT_PARTING);
            if !self.pace.rest(matches!(found_news, Ok(true))) {
                break;
            }
            if !all_settled {
                // Nobody else may have a reason to look for who serves it.
                self.look_around_soon(false);
            }
        }
    }

    /// Asks one node after the other, until one answers. Whether that is news.
    fn look_around(&self, limit: &mut Limit) -> Result<bool, Failure> {
        let candidates = self.candidates();
        self.asked.lock().retain(|asked, _| candidates.contains(asked));
        let mut failure = None;
        for (address, share) in candidates.iter().zip(shares(candidates.len())) {
            // Each gets its share, or one that hangs would leave nothing for the next.
            let left = limit.refresh().left().unwrap_or_default();
            // But never less than some round trips over a long way take.
            let share = (left / share).max(left.min(self.command_timeout / 4));
            match self.ask(address, &mut Limit::after(share)) {
                Ok(view) => return Ok(self.learn(&view)),
                // Who is not let in should hear of that rather than of a node that is down.
                Err(other) if matches!(failure, Some(Failure::Unauthenticated { .. })) => {
                    drop(other);
                }
                Err(other) => failure = Some(other),
            }
        }
        Err(failure.unwrap_or_else(|| self.nobody()))
    }

    /// The nodes that are known, in any order: one may be cut off and know less than the others. Then the seeds.
    fn candidates(&self) -> Vec<Address> {
        let mut candidates: Vec<Address> =
            self.nodes().iter().filter_map(|node| node.address().cloned()).collect();
        fastrand::shuffle(&mut candidates);
        for seed in &self.seeds {
            if !candidates.contains(seed) {
                candidates.push(seed.clone());
            }
        }
        candidates
    }

    /// Asks a node on a connection of its own: those of the node may all be in use by callers who wait in vain.
    fn ask(&self, address: &Address, limit: &mut Limit) -> Result<View, Failure> {
        let decided = self.members.read().channels();
        let server = Arc::clone(
            self.asked
                .lock()
                .entry(address.clone())
                .or_insert_with(|| Arc::new(self.server(address.clone(), Channels::Everywhere))),
        );
        let mut connection = server.connect(limit)?;
        // Relaxed: a number to look at.
        self.other_connections.fetch_add(1, Ordering::Relaxed);
        // Nothing was changed, so it does not matter whether it ran.
        let broken = |broken: Broken| match server.failure(broken, ServerTime(0)) {
            Failure::Unknown { reason, .. } => {
                Failure::NotSent { server: address.to_string(), reason }
            }
            failure => failure,
        };
        let ranges = ask_slots(&mut connection, limit, address)
            .map_err(broken)?
            .map_err(|(code, message)| Failure::Refused { code, message })?;
        limit.refresh();
        let channels = match decided {
            Some(channels) => channels,
            None => ask_channels(&mut connection, limit).map_err(broken)?,
        };
        Ok(View { ranges, channels })
    }

    fn learn(&self, view: &View) -> bool {
        let mut members = self.members.write();
        members.decide(view.channels);
        let make = |address, channels| self.make(address, channels);
        members.learn(&view.ranges, SystemClock.now(), make)
    }

    /// Listens to every channel where it is served. Whether all are.
    fn resettle(&self) -> bool {
        let all = self.audience.resettle(&self.members);
        self.flush();
        all
    }

    /// Lets go of the nodes that have left. Whether there are others that may.
    fn part(&self) -> bool {
        let (gone, others) = self.members.write().part(SystemClock.now());
        for node in gone {
            self.other_connections.fetch_add(node.connections_made(), Ordering::Relaxed);
            // Its connections end with who uses them.
            node.subscription().close();
            // Nobody has anything to do there any more.
            node.server().wake();
        }
        others
    }
}

impl Elsewhere for Shared {
    fn look(&self, named: Option<Redirection>) {
        match named {
            Some(Redirection::Moved { slot, to }) => drop(self.moved(slot, &to)),
            _ => self.look_around_soon(false),
        }
    }
}
