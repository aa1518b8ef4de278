//! The thread that scans the server, and the last scan, which all requests share.
//!
//! A request that finds the last scan too old wishes for another and waits for a while. The thread
//! makes one scan of all wishes, and none sooner than the refresh time after the last. After a long
//! scan the server is left alone for as long as the scan took.

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

/// How long a request waits for a scan. Prometheus waits for an answer for 10 s.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to scan, and how often.
pub(crate) struct Settings {
    pub(crate) pattern: String,
    pub(crate) separator: String,
    pub(crate) refresh: Duration,
}

/// The scans so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latest {
    /// The last complete scan.
    pub(crate) taken: Option<Arc<Taken>>,
    /// Why the last scan failed, if it did.
    pub(crate) failure: Option<Arc<str>>,
    pub(crate) scans: Scans,
    /// When the last scan ended, complete or not, and how long it took.
    ended: Option<(Instant, Duration)>,
}

impl Latest {
    /// Whether it is too early for another scan.
    fn is_fresh(&self, refresh: Duration, now: Instant) -> bool {
        self.ended
            .is_some_and(|(ended, took)| now.saturating_duration_since(ended) < refresh.max(took))
    }

    /// How long a request waits for the next scan: not at all if that takes longer all the same.
    fn patience(&self) -> Duration {
        let is_slow = self.ended.is_some_and(|(_, took)| took > PATIENCE);
        if is_slow { Duration::ZERO } else { PATIENCE }
    }
}

/// How many scans there were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scans {
    pub(crate) complete: u64,
    pub(crate) failed: u64,
}

/// A snapshot, and its JSON, which is written once.
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
    /// Starts the thread, which scans when somebody wishes for a scan.
    pub(crate) fn start(client: Client, settings: Settings) -> io::Result<Self> {
        let (wishes, requests) = bounded(1);
        let (publish, latest) = watch::channel(Latest::default());
        let refresh = settings.refresh;
        let run = move || scan_on_wish(&client, &settings, &requests, &publish);
        thread::Builder::new().name("scan".to_owned()).spawn(run)?;
        Ok(Self { refresh, wishes, latest })
    }

    /// The last scan, or the next one if the last is too old and the next takes no longer than
    /// [`PATIENCE`].
    pub(crate) async fn latest(&self) -> Latest {
        let mut latest = self.latest.clone();
        let before = latest.borrow_and_update().clone();
        if before.is_fresh(self.refresh, SystemClock.now()) {
            return before;
        }
        // Full: somebody else has the same wish.
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
        // A wish that came while the last scan ended.
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

/// One scan. The first error ends the scan: a part of the locks would be taken for all.
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
    fn the_server_rests_for_the_refresh_time_and_as_long_as_the_scan_took() {
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
