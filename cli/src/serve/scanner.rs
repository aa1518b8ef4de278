//! The thread that scans the server, and the last scan, shared by all requests.
//!
//! A request that finds the last scan too old wishes for another, and waits for at most
//! [`PATIENCE`]. If the new scan takes longer, the last scan is served with its age: a late answer
//! is worse than an old scan whose age is known. Scans begin on wishes and not by a timer, so a
//! server without readers is not scanned.
//!
//! The thread makes a single scan of all wishes, and none sooner than the refresh time after the
//! last. The thread itself refuses early scans, so neither many requests nor a race between them
//! can cause a second scan, and scans never overlap. After a long scan the server is left alone for
//! as long as the scan took.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout;
use wheellock::crossbeam_channel::{Receiver, Sender, bounded};
use wheellock::{Client, Clock as _, SystemClock};

use super::graph::Graph;
use super::snapshot::{Scan, Seen, Snapshot};
use super::text::{json, visible};

/// Time limit for a request's wait for a scan. Prometheus waits for an answer for 10 s.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pattern, the prefix separator, and the refresh time of scans.
pub(crate) struct Settings {
    pub(crate) pattern: String,
    pub(crate) separator: String,
    pub(crate) refresh: Duration,
}

/// The state after the last scan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latest {
    /// The last complete scan.
    pub(crate) taken: Option<Arc<Taken>>,
    /// The error of the last scan, if the scan failed.
    pub(crate) failure: Option<Arc<str>>,
    pub(crate) scans: Scans,
    /// The end and the duration of the last scan, complete or not.
    ended: Option<(Instant, Duration)>,
}

impl Latest {
    /// Whether another scan would be too early.
    fn is_fresh(&self, refresh: Duration, now: Instant) -> bool {
        self.ended
            .is_some_and(|(ended, took)| now.saturating_duration_since(ended) < refresh.max(took))
    }

    /// The time for which a request waits for the next scan: zero if the last scan took longer than
    /// [`PATIENCE`].
    fn patience(&self) -> Duration {
        let is_slow = self.ended.is_some_and(|(_, took)| took > PATIENCE);
        if is_slow { Duration::ZERO } else { PATIENCE }
    }
}

/// The number of scans, by result.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scans {
    pub(crate) complete: u64,
    pub(crate) failed: u64,
}

/// A snapshot, and the JSON of the snapshot, written once for all requests.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) snapshot: Snapshot,
    pub(crate) json: Vec<u8>,
}

pub(crate) struct Scanner {
    pub(crate) refresh: Duration,
    wishes: Sender<()>,
    latest: watch::Receiver<Latest>,
}

impl Scanner {
    /// Starts the thread, which scans on wishes.
    pub(crate) fn start(client: Client, settings: Settings) -> io::Result<Self> {
        let (wishes, requests) = bounded(1);
        let (publish, latest) = watch::channel(Latest::default());
        let refresh = settings.refresh;
        let run = move || scan_on_wish(&client, &settings, &requests, &publish);
        thread::Builder::new().name("scan".to_owned()).spawn(run)?;
        Ok(Self { refresh, wishes, latest })
    }

    /// Returns the last scan if fresh, or else the next scan if complete within
    /// [`Latest::patience`], or else the last scan. If the thread has ended, `failure` says so.
    pub(crate) async fn latest(&self) -> Latest {
        let mut latest = self.latest.clone();
        let before = latest.borrow_and_update().clone();
        if before.is_fresh(self.refresh, SystemClock.now()) {
            return before;
        }
        // A full channel has the same wish already.
        self.wishes.try_send(()).ok();
        match timeout(before.patience(), latest.changed()).await {
            Ok(Err(_)) => {
                let failure = Some(Arc::from("the thread that scans has ended"));
                Latest { failure, ..before }
            }
            Ok(Ok(())) | Err(_) => latest.borrow().clone(),
        }
    }
}

fn scan_on_wish(
    client: &Client,
    settings: &Settings,
    requests: &Receiver<()>,
    publish: &watch::Sender<Latest>,
) {
    let mut seen = Seen::default();
    while requests.recv().is_ok() {
        // The wish arrived while the last scan ended.
        if publish.borrow().is_fresh(settings.refresh, SystemClock.now()) {
            continue;
        }
        let began = SystemClock.now();
        let scanned = scan(client, settings, &mut seen);
        publish.send_modify(|latest| {
            match scanned {
                Ok(taken) => {
                    latest.taken = Some(Arc::new(taken));
                    latest.failure = None;
                    latest.scans.complete += 1;
                }
                Err(failure) => {
                    latest.failure = Some(Arc::from(failure));
                    latest.scans.failed += 1;
                }
            }
            let ended = SystemClock.now();
            latest.ended = Some((ended, ended.saturating_duration_since(began)));
        });
    }
}

/// Makes a scan. The first error ends the scan, as a part of the locks would look like all locks.
fn scan(client: &Client, settings: &Settings, seen: &mut Seen) -> Result<Taken, String> {
    let mut scan = Scan::new(&settings.separator, seen, SystemClock.now());
    let mut locks = client.locks(&settings.pattern);
    let reason = |error: wheellock::Error| visible(&error.to_string(), 1000);
    for status in locks.by_ref() {
        scan.add(status.map_err(reason)?, SystemClock.now());
    }
    let mut snapshot = scan.end(locks.unreadable(), SystemClock.now());
    let held = snapshot.held();
    if !held.is_empty() {
        let found = client.wait_graph_of(held).map_err(reason)?;
        snapshot.graph = Graph::of(&found.locks, &found.waits, &found.cycles);
    }
    let json = json(&snapshot.object()).map_err(|error| error.to_string())?;
    Ok(Taken { snapshot, json })
}

#[cfg(test)]
mod tests {
    use wheellock::ManualClock;

    use super::*;

    #[test]
    fn scan_pause_is_longer_of_refresh_time_and_scan_duration() {
        let (start, second) = (ManualClock::new().now(), Duration::from_secs(1));
        assert!(!Latest::default().is_fresh(Duration::MAX, start));
        let quick = Latest { ended: Some((start, second)), ..Latest::default() };
        assert!(quick.is_fresh(5 * second, start + 4 * second));
        assert!(!quick.is_fresh(5 * second, start + 5 * second));
        assert!(quick.is_fresh(Duration::MAX, start + 5 * second));
        assert_eq!(quick.patience(), PATIENCE);
        let slow = Latest { ended: Some((start, 60 * second)), ..Latest::default() };
        assert!(slow.is_fresh(5 * second, start + 59 * second));
        assert!(!slow.is_fresh(5 * second, start + 60 * second));
        assert_eq!(slow.patience(), Duration::ZERO);
    }
}
