//! The setting of one cell: a client behind a proxy, a name, and what the client holds.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use wheellock::{Client, ClientBuilder, Error, LostReason, PermitId};
use wheellock_fixture::{Fault as ProxyFault, Proxy, Request};

use crate::cell::WINDOW;
use crate::common::{now, pause};
use crate::faults::Times;
use crate::holding::{HeldInterval, Holding};
use crate::operations::Row;
use crate::place::Place;
use crate::sends::Sends;
use crate::servers::{Kind, Proxies};

/// What a call says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    /// It did what it is for.
    Done,
    /// A try that is no error found nothing to take.
    Nothing,
    /// The hold lives.
    Held,
    Lost(LostReason),
    /// It is finished in the background.
    Queued,
    /// No call fails, and another master is found only by polling.
    Polls,
}

pub(crate) struct CellRun<'a> {
    pub(crate) place: &'a Place,
    pub(crate) proxies: &'a Arc<Proxies>,
    pub(crate) row: Row,
    pub(crate) client: &'a Client,
    pub(crate) name: String,
    pub(crate) times: Times,
    /// Until when a fault that comes every time stays.
    pub(crate) window_ends: Cell<Instant>,
    pub(crate) permit: Cell<Option<PermitId>>,
    holdings: RefCell<Vec<(Box<dyn Holding>, HeldInterval)>>,
    ended: RefCell<Vec<HeldInterval>>,
}

/// Between two looks when there is nothing to wait for but time.
pub(crate) const BETWEEN_TWO_LOOKS: Duration = Duration::from_millis(10);

impl<'a> CellRun<'a> {
    pub(crate) fn new(
        place: &'a Place,
        proxies: &'a Arc<Proxies>,
        client: &'a Client,
        (row, name): (Row, &str),
        times: Times,
    ) -> Self {
        Self {
            place,
            proxies,
            row,
            client,
            name: name.to_owned(),
            times,
            window_ends: Cell::new(now() + WINDOW),
            permit: Cell::new(None),
            holdings: RefCell::new(Vec::new()),
            ended: RefCell::new(Vec::new()),
        }
    }

    /// How the client was built.
    pub(crate) fn builder(&self) -> ClientBuilder {
        self.place.builder(self.proxies, self.row.timeout())
    }

    /// Where the fault strikes.
    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxies.at(self.row.endpoint)
    }

    /// Counts how often something is sent from now on.
    pub(crate) fn count(&self, sends: Sends) -> impl Fn() -> usize + use<> {
        let sent = Arc::new(AtomicUsize::new(0));
        // The rival of a cluster is told the addresses of the proxies.
        let may_be_the_rivals =
            self.place.kind == Kind::InCluster && matches!(sends, Sends::Script(_));
        for endpoint in self.proxies.all() {
            let (matches, own) = (sends.matcher(), self.client.id());
            let is_it = move |request: &Request| {
                matches(request) && (!may_be_the_rivals || request.contains(&own))
            };
            let counted = Arc::clone(&sent);
            let count = move |request: &Request| {
                // Relaxed: a number to look at.
                counted.fetch_add(usize::from(is_it(request)), Ordering::Relaxed);
                false
            };
            endpoint.on(count, ProxyFault::PassOn).always();
        }
        move || sent.load(Ordering::Relaxed)
    }

    /// Another name beside this one.
    pub(crate) fn other(&self, ending: &str) -> String {
        format!("{}-{ending}", self.name)
    }

    /// Keeps what was taken.
    pub(crate) fn retain<H: Holding + 'static>(&self, held: H) -> Returned {
        let before = now();
        let last = if held.is_held() { now() } else { before };
        let interval = HeldInterval { since: now(), last };
        self.holdings.borrow_mut().push((Box::new(held), interval));
        Returned::Done
    }

    /// Keeps what was taken, if it was.
    pub(crate) fn retain_if<H: Holding + 'static>(&self, held: Option<H>) -> Returned {
        held.map_or(Returned::Nothing, |held| self.retain(held))
    }

    /// Checks whether it is still valid.
    pub(crate) fn look(&self) -> bool {
        let mut holdings = self.holdings.borrow_mut();
        for (held, interval) in holdings.iter_mut() {
            let before = now();
            if held.is_held() {
                interval.last = before;
            }
        }
        holdings.iter().any(|(held, _)| held.is_held())
    }

    /// What was acquired last, forgotten: it is not valid any more.
    pub(crate) fn part(&self) -> Option<Box<dyn Holding>> {
        self.look();
        let (held, interval) = self.holdings.borrow_mut().pop()?;
        self.ended.borrow_mut().push(interval);
        Some(held)
    }

    /// Releases what was taken last.
    pub(crate) fn release(&self) -> Result<Returned, Error> {
        match self.part() {
            Some(held) => held.release().map(|()| Returned::Done),
            None => Ok(Returned::Nothing),
        }
    }

    /// Releases what was taken before the last.
    pub(crate) fn release_below(&self) -> Result<Returned, Error> {
        let above = self.holdings.borrow_mut().pop();
        let result = self.release();
        self.holdings.borrow_mut().extend(above);
        result
    }

    /// Releases everything. Returns each result, and whether it was valid before.
    pub(crate) fn release_all(&self) -> Vec<(bool, Result<Returned, Error>)> {
        let mut results = Vec::new();
        while !self.holdings.borrow().is_empty() {
            let is_held = self.holdings.borrow().last().is_some_and(|(held, _)| held.is_held());
            results.push((is_held, self.release()));
        }
        results
    }

    pub(crate) fn has_something(&self) -> bool {
        !self.holdings.borrow().is_empty()
    }

    /// Waits until the hold was renewed, or is lost, or nothing more can happen.
    pub(crate) fn watch(&self) -> Returned {
        let renewed = self.client.stats().renewed;
        loop {
            self.look();
            if let Some((held, _)) = self.holdings.borrow().last()
                && let Some(Ok(reason)) = held.lost().map(crossbeam_channel::Receiver::try_recv)
            {
                return Returned::Lost(reason);
            }
            let over = match self.times {
                Times::First => self.client.stats().renewed > renewed,
                Times::Every => now() >= self.window_ends.get(),
            };
            if over {
                return Returned::Held;
            }
            pause(BETWEEN_TWO_LOOKS);
        }
    }

    /// Lets time pass until then, and looks again and again.
    pub(crate) fn wait_and_look(&self, until: Instant) {
        while now() < until {
            self.look();
            pause(BETWEEN_TWO_LOOKS);
        }
    }

    /// When this client had a valid hold.
    pub(crate) fn intervals(&self) -> Vec<HeldInterval> {
        let holdings = self.holdings.borrow();
        let ended = self.ended.borrow();
        ended.iter().copied().chain(holdings.iter().map(|(_, interval)| *interval)).collect()
    }
}
