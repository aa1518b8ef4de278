//! Where a server is: at an address that stays, or wherever the sentinels say that the master is.

use std::fmt;
use std::time::{Duration, Instant};

use hashed_wheel::{Clock, SystemClock};
use parking_lot::{Condvar, Mutex};

use super::address::{Address, Peer};
use super::connection::Limit;
use super::sentinels::{Said, Sentinels};
use crate::store::Failure;

#[derive(Debug)]
pub(super) enum Whereabouts {
    Fixed(Peer),
    Followed(Box<Master>),
}

/// The master of a name, as far as the sentinels have said where it is.
#[derive(Debug)]
pub(super) struct Master {
    pub(super) sentinels: Sentinels,
    state: Mutex<State>,
    /// Signalled when it moves, when an answer is there, and at the end.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    present: Option<Said>,
    /// Whether the sentinels are to be asked before anybody goes there.
    doubted: bool,
    /// Whether somebody is asking them. The others wait for his answer.
    asking: bool,
    /// Why he got none.
    failure: Option<Failure>,
    /// How often it moved.
    moves: u64,
    /// When the last failover became known.
    learnt_at: Option<Instant>,
    closed: bool,
}

/// How long sentinels may need to hear of a failover from each other. Until then those that know less are no majority
/// that takes something back.
const SPREADS_IN: Duration = Duration::from_secs(10);

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It is where it was, or was not known before.
    None,
    /// It was elsewhere until now. Whatever leads there must be shut.
    Moved,
}

impl Master {
    pub(super) fn new(sentinels: Sentinels) -> Self {
        Self { sentinels, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Where it is, unless that is in doubt.
    pub(super) fn present(&self) -> Option<Address> {
        let state = self.state.lock();
        state.present.as_ref().filter(|_| !state.doubted).map(|said| said.address.clone())
    }

    /// How often it moved. Read it before anything that might fail because it has.
    pub(super) fn moves(&self) -> u64 {
        self.state.lock().moves
    }

    /// It may not be at that address any more, or not be the master. A doubt that comes late, when it has moved, is about
    /// another.
    pub(super) fn doubt(&self, address: &Address) {
        let mut state = self.state.lock();
        state.doubted |= state.is_at(address);
    }

    /// It is not where everybody takes it to be.
    pub(super) fn doubt_it(&self) {
        self.state.lock().doubted = true;
    }

    /// Asks the sentinels, or waits for the answer if somebody is asking.
    pub(super) fn ask(&self, limit: &mut Limit) -> Result<News, Failure> {
        let (present, before) = {
            let mut state = self.state.lock();
            if state.asking {
                while state.asking && !state.closed {
                    let Ok(left) = limit.refresh().left() else { break };
                    self.changed.wait_for(&mut state, left);
                }
                return match &state.failure {
                    Some(failure) => Err(failure.clone()),
                    None if state.asking => Err(self.sentinels.failure("no answer came in time")),
                    None => Ok(News::None),
                };
            }
            state.asking = true;
            (state.present.clone(), state.failure.take())
        };
        // Who has no time left to ask anybody has met what was met before.
        let answer = match limit.refresh().left() {
            Ok(_) => self.sentinels.ask_all(present.as_ref(), limit),
            Err(_) => Err(before.unwrap_or_else(|| self.sentinels.failure("no time was left"))),
        };
        let mut state = self.state.lock();
        state.asking = false;
        let news = match answer {
            // Somebody may have heard of a later failover meanwhile.
            Ok(said) if present != state.present && !state.is_newer(&said) => Ok(News::None),
            Ok(said) if state.would_step_back(&said, SystemClock.now()) => {
                let failure = self.sentinels.failure("those that answer know less than was known");
                state.failure = Some(failure.clone());
                Err(failure)
            }
            Ok(said) => {
                state.doubted = false;
                Ok(state.adopt(said))
            }
            Err(failure) => {
                state.failure = Some(failure.clone());
                Err(failure)
            }
        };
        self.changed.notify_all();
        news
    }

    /// One sentinel has said something. It counts if it is of a later failover than what is known. While nothing is,
    /// one is not enough.
    pub(super) fn hear(&self, said: Said) -> News {
        let mut state = self.state.lock();
        if state.present.is_none() || !state.is_newer(&said) {
            return News::None;
        }
        state.doubted = false;
        let news = state.adopt(said);
        self.changed.notify_all();
        news
    }

    /// A sentinel has told of a switch. `None` if it began elsewhere than where the master is known to be: then that
    /// sentinel is behind, or we are.
    pub(super) fn switched(&self, from: &Address, to: Address) -> Option<News> {
        let mut state = self.state.lock();
        let epoch = match &state.present {
            Some(present) if present.address == *from => present.epoch.saturating_add(1),
            Some(present) if present.address == to => return Some(News::None),
            _ => return None,
        };
        state.doubted = false;
        let news = state.adopt(Said { address: to, epoch });
        self.changed.notify_all();
        Some(news)
    }

    /// Waits until it has moved since `moves` was read, for at most `limit`. Whether it has.
    pub(super) fn wait_for_a_move(&self, moves: u64, limit: Duration) -> bool {
        let mut limit = Limit::after(limit);
        let mut state = self.state.lock();
        while state.moves == moves && !state.closed {
            let Ok(left) = limit.refresh().left() else { return false };
            self.changed.wait_for(&mut state, left);
        }
        true
    }

    /// Ends every wait, now and later.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
        self.sentinels.shut();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }
}

impl State {
    fn is_newer(&self, said: &Said) -> bool {
        self.present.as_ref().is_none_or(|present| said.epoch > present.epoch)
    }

    fn is_at(&self, address: &Address) -> bool {
        self.present.as_ref().is_some_and(|present| present.address == *address)
    }

    /// Whether that is of a time before the last failover, which not all sentinels need have heard of.
    fn would_step_back(&self, said: &Said, now: Instant) -> bool {
        self.present.as_ref().is_some_and(|present| said.epoch < present.epoch)
            && self.learnt_at.is_some_and(|at| now < at + SPREADS_IN)
    }

    fn adopt(&mut self, said: Said) -> News {
        if self.is_newer(&said) {
            self.learnt_at = Some(SystemClock.now());
        }
        let moved = self.present.as_ref().is_some_and(|before| before.address != said.address);
        self.present = Some(said);
        if !moved {
            return News::None;
        }
        self.moves += 1;
        News::Moved
    }
}

impl fmt::Display for Whereabouts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(peer) => peer.fmt(formatter),
            Self::Followed(master) => match &master.state.lock().present {
                Some(said) => write!(formatter, "{} ({})", said.address, master.sentinels.name()),
                None => master.sentinels.fmt(formatter),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::address::Access;

    fn address(port: u16) -> Address {
        Address { host: "10.0.0.1".to_owned(), port }
    }

    fn master() -> Master {
        let access = Access::default();
        let name = "mymaster".to_owned();
        Master::new(Sentinels::new(name, Vec::new(), access, Duration::from_secs(1)))
    }

    /// What is known already.
    fn know(master: &Master, said: Said) {
        assert_eq!(master.state.lock().adopt(said), News::None);
    }

    fn said(port: u16, epoch: u64) -> Said {
        Said { address: address(port), epoch }
    }

    #[test]
    fn it_moves_when_somebody_tells_of_a_later_failover_to_another_address() {
        let master = master();
        assert_eq!(master.hear(said(3, 5)), News::None);
        assert_eq!(master.present(), None);
        know(&master, said(1, 5));
        assert_eq!(master.hear(said(2, 5)), News::None);
        assert_eq!(master.hear(said(1, 6)), News::None);
        assert_eq!(master.present(), Some(address(1)));
        assert_eq!(master.hear(said(2, 7)), News::Moved);
        assert_eq!(master.present(), Some(address(2)));
        assert_eq!(master.moves(), 1);
    }

    #[test]
    fn a_switch_counts_if_it_began_where_the_master_is_known_to_be() {
        let master = master();
        assert_eq!(master.switched(&address(1), address(2)), None);
        know(&master, said(1, 5));
        assert_eq!(master.switched(&address(1), address(2)), Some(News::Moved));
        // Somebody else tells of the same, and somebody who has slept of what was before.
        assert_eq!(master.switched(&address(1), address(2)), Some(News::None));
        assert_eq!(master.hear(said(1, 5)), News::None);
        assert_eq!(master.switched(&address(3), address(1)), None);
        assert_eq!(master.present(), Some(address(2)));
        // Its number is learnt afterwards.
        assert_eq!(master.hear(said(3, 7)), News::Moved);
    }

    #[test]
    fn a_doubted_address_is_not_given_until_somebody_knows_better() {
        let master = master();
        know(&master, said(1, 5));
        master.doubt(&address(2));
        assert_eq!(master.present(), Some(address(1)));
        master.doubt(&address(1));
        assert_eq!(master.present(), None);
        assert_eq!(master.hear(said(1, 5)), News::None);
        assert_eq!(master.present(), None);
        assert_eq!(master.hear(said(2, 6)), News::Moved);
        assert_eq!(master.present(), Some(address(2)));
    }

    #[test]
    fn right_after_a_failover_nobody_takes_it_back() {
        let master = master();
        let mut state = master.state.lock();
        state.adopt(said(1, 5));
        state.adopt(said(2, 6));
        let now = SystemClock.now();
        assert!(state.would_step_back(&said(1, 5), now));
        assert!(!state.would_step_back(&said(1, 5), now + SPREADS_IN));
        assert!(!state.would_step_back(&said(3, 7), now));
    }
}
