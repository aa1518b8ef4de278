//! What the processes of every simulation have in common: how a client starts, and what is left of
//! it and on the servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::client::client::Client;
use crate::core::client_core::{ClientCore, StartMode, Target};
use crate::events::callbacks::Callbacks;
use crate::events::stats::Stats;
use crate::model::lease::Lease;
use crate::model::name::{LockName, Prefix};
use crate::model::settings::Settings;
use crate::store::Location;
use crate::testing::modelled::sync::{SystemClock, sleep};
use crate::testing::simulation::faults::{FAULTS_BEGIN_WITHIN, sleep_until_undisturbed};
use crate::testing::simulation::network::Net;

/// The name of the lock.
pub(crate) const NAME: &str = "a";
pub(crate) const LEASE: Duration = Duration::from_secs(9);
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_millis(300);
/// How late a call may end: threads take a little time in a simulation too.
pub(crate) const SLACK: Duration = Duration::from_millis(20);
/// How long a record of a client lives.
const RECORD_LIFETIME: Duration = Duration::from_secs(61);

/// What a run is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) clients: u8,
    pub(crate) threads: usize,
    pub(crate) rounds: usize,
    /// The largest number of faults.
    pub(crate) faults: usize,
}

/// Whether the lock is free, and since when.
pub(crate) struct Free {
    is_free: bool,
    since: Instant,
}

impl Free {
    pub(crate) fn since(now: Instant) -> Self {
        Self { is_free: true, since: now }
    }

    pub(crate) fn update(&mut self, is_free: bool, now: Instant) {
        if !is_free || !self.is_free {
            self.since = now;
        }
        self.is_free = is_free;
    }

    /// For how long it has been free, at a time at which somebody waits for it since `waiting` and
    /// nothing has been wrong since `disturbed`.
    pub(crate) fn idle(
        &self,
        now: Instant,
        waiting: Instant,
        disturbed: Option<Instant>,
    ) -> Duration {
        let since = self.since.max(waiting);
        now.saturating_duration_since(disturbed.map_or(since, |until| until.max(since)))
    }
}

/// The URL of the server with this port.
pub(crate) fn url_of(port: u16) -> String {
    format!("redis://10.0.0.1:{port}")
}

/// A client of the server or of the cluster with this URL.
pub(crate) fn start(url: &str, mode: StartMode) -> Arc<ClientCore> {
    let settings = Settings {
        watchdog_lease: Lease::new(LEASE).unwrap(),
        command_timeout: COMMAND_TIMEOUT,
        label: Some(Arc::from("simulated")),
        ..Settings::default()
    };
    let location = Location::parse(url).unwrap();
    let core = ClientCore::start(
        Target::Redis(Box::new(location)),
        Arc::new(SystemClock),
        settings,
        Callbacks::default(),
        mode,
    );
    Arc::new(core.unwrap())
}

/// Its threads are done, and nothing is wrong any more: nothing is left.
pub(crate) fn finish(number: u8, core: &Arc<ClientCore>) -> Stats {
    // Without guards: what is cached is released when its time is over.
    let until = SystemClock.now() + Duration::from_secs(20);
    while core.holds.len() > 0 && SystemClock.now() < until {
        sleep(Duration::from_millis(100));
    }
    let unreleased = core.watchdog.releases.flush(SystemClock.now() + Duration::from_secs(20));
    assert!(unreleased.is_empty(), "client {number} has not released {unreleased:?}");
    // After a restart or a move, releases that were acknowledged before are sent once more. The
    // client may hear of it only now, also by the reply of a release that is not queued yet.
    let stats = || Client::new(Arc::clone(core), Prefix::new("")).stats();
    let until = SystemClock.now() + Duration::from_secs(20);
    let mut last = stats();
    while last.queued_releases + last.unread_releases > 0 && SystemClock.now() < until {
        sleep(Duration::from_millis(100));
        last = stats();
    }
    assert_eq!((last.held, last.waiters, last.queued_releases), (0, 0, 0));
    assert_eq!(last.unread_releases, 0, "a reply was not read");
    assert_eq!(last.panics, 0, "a thread of the watchdog panicked");
    last
}

/// All clients have ended, and nothing is left on the servers. `has_lost` says whether a server may
/// have got a lock back that was released.
pub(crate) fn check_end(nets: &[Net], has_faults: bool, has_lost: impl Fn(&Net) -> bool) {
    // The last fault has begun by then.
    sleep(FAULTS_BEGIN_WITHIN);
    sleep_until_undisturbed(nets);
    sleep(Duration::from_millis(200));
    let keys = |net: &Net| {
        let mut keys = net.with_server(|server| server.keys(SystemClock.now()));
        let name = LockName::parse(NAME).unwrap();
        // The last token stays for ever, and waiters that a failover brings back into a fair queue
        // until the next acquire.
        let is_lossless = !has_lost(net);
        keys.retain(|key| {
            let is_queue = **key == *name.queue() || **key == *name.queue_deadlines();
            **key != *name.token() && (is_lossless || !is_queue)
        });
        keys
    };
    for net in nets {
        let left = keys(net);
        let is_locked = left.iter().any(|key| key == NAME);
        assert!(!is_locked || has_lost(net), "the lock is held by nobody");
        assert!(left.is_empty() || has_faults, "{left:?} is left on the server");
        assert_eq!(net.connections(), 0, "connections are left");
    }
    sleep(RECORD_LIFETIME + Duration::from_secs(11));
    for net in nets {
        let left = keys(net);
        assert!(left.is_empty(), "{left:?} is left on the server for long");
        net.clear();
    }
}
