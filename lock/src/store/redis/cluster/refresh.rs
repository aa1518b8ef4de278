//! Queries the topology of a cluster.
//!
//! The connecting caller makes the first query, before the first operation. Then one background
//! thread makes all queries, whenever there is a reason. Every broken connection is a reason, so a
//! failover is found without a redirection by the dead node. Meanwhile callers use the known
//! topology.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::model::sync::{Mutex, TimedMutex, thread};
use crate::ops::value::ServerTime;
use crate::store::connections::Connections;
use crate::store::failure::Failure;
use crate::store::redis::address::url::Address;
use crate::store::redis::cluster::nodes::{NodeFactory, Nodes};
use crate::store::redis::cluster::refresh_timer::RefreshTimer;
use crate::store::redis::cluster::slots_query::{Description, query_description};
use crate::store::redis::cluster::topology::Topology;
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::node::node::Node;
use crate::store::redis::node::server::Server;
use crate::store::redis::node::subscriber::RedirectSink;
use crate::store::redis::resp::pubsub::Channels;
use crate::store::redis::resp::redirect::Redirection;

/// The interval between checks for unused nodes.
const UNUSED_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Updates the topology.
pub(crate) struct Refresher {
    pub(crate) topology: Topology,
    /// Queried when no known node answers.
    seeds: Vec<Address>,
    factory: Arc<NodeFactory>,
    timer: RefreshTimer,
    /// Held by the call that makes the first query. Concurrent calls wait for this query.
    first_refresh: TimedMutex,
    /// The queried servers. Retained, because each server has at most one thread to resolve its
    /// host and one to call the credentials callback.
    query_servers: Mutex<HashMap<Address, Arc<Server>>>,
    /// The number of connections for queries. Relaxed: a statistic.
    query_connections: AtomicU64,
    itself: Weak<Self>,
}

impl Refresher {
    /// Creates a refresher with an empty topology. `seeds` are some nodes of the cluster.
    pub(crate) fn new(seeds: Vec<Address>, mut factory: NodeFactory) -> Arc<Self> {
        Arc::new_cyclic(|itself: &Weak<Self>| {
            factory.redirects = Some(itself.clone() as Weak<dyn RedirectSink>);
            let factory = Arc::new(factory);
            Self {
                topology: Topology::new(Nodes::new(Arc::clone(&factory))),
                seeds,
                factory,
                timer: RefreshTimer::new(),
                first_refresh: TimedMutex::default(),
                query_servers: Mutex::default(),
                query_connections: AtomicU64::new(0),
                itself: itself.clone(),
            }
        })
    }

    pub(crate) fn seeds(&self) -> &[Address] {
        &self.seeds
    }

    /// Queries the topology if nothing is known yet: at connect, or at the first call. Concurrent
    /// calls wait for one query.
    pub(crate) fn ensure_topology(&self, deadline: &mut Deadline) -> Result<(), Failure> {
        if self.topology.channels().is_some() {
            return Ok(());
        }
        let left = deadline.refresh().left().unwrap_or_default();
        let Some(_turn) = self.first_refresh.try_lock_for(left) else {
            return Err(self.topology.no_node());
        };
        if self.topology.channels().is_some() {
            return Ok(());
        }
        self.refresh(deadline).map(drop)
    }

    /// Requests a refresh of the topology by the background thread, which is started if necessary.
    /// `has_changed`: the topology is known to have changed.
    pub(crate) fn refresh_soon(&self, has_changed: bool) {
        self.timer.request(has_changed, || {
            let Some(refresher) = self.itself.upgrade() else { return false };
            let thread = thread::Builder::new().name("lock-topology".to_owned());
            thread.spawn(move || refresher.run()).is_ok()
        });
    }

    /// Requests a refresh after a failure that a change of the topology may have caused. Ignores
    /// other failures.
    pub(crate) fn report_failure(&self, failure: &Failure) {
        // While a hash slot migrates, its keys are refused, but the topology has not changed yet.
        let is_migrating = matches!(failure, Failure::Refused { code, .. } if code == "TRYAGAIN");
        if failure.is_transient() && !is_migrating {
            if matches!(failure, Failure::NotSent { .. } | Failure::Unknown { .. }) {
                self.timer.note_failure();
            }
            self.refresh_soon(false);
        }
    }

    /// Records the report that the node at `address` serves `slot`, and requests a refresh. Returns
    /// the node. `None` after [`close`](Self::close).
    pub(crate) fn learn_owner(&self, slot: u16, address: &Address) -> Option<Arc<Node>> {
        let (node, has_changed) = self.topology.set_owner(slot, address)?;
        self.refresh_soon(has_changed);
        Some(node)
    }

    /// Returns the counts of connections to all nodes, also to removed nodes. Connections for
    /// queries of the topology count in `made` only.
    pub(crate) fn connections(&self) -> Connections {
        let made = self.query_connections.load(Ordering::Relaxed);
        self.topology.connections() + Connections { made, ..Connections::default() }
    }

    /// Ends the background thread, and closes all nodes.
    pub(crate) fn close(&self) {
        self.timer.close();
        self.topology.close();
    }

    /// Runs the background thread: refreshes the topology at each request, until
    /// [`close`](Self::close).
    fn run(self: Arc<Self>) {
        let mut longest_wait = None;
        while self.timer.wait(longest_wait) {
            // 1. Redirections may have changed owners already. Their channels need not wait for the
            //    query.
            self.topology.rebalance();
            // 2. Query a node.
            let refreshed = self.refresh(&mut Deadline::after(self.factory.command_timeout));
            // 3. Move the channels of changed owners, and retry refused subscriptions.
            let all_served = self.topology.rebalance();
            for node in self.topology.nodes() {
                node.subscriber().retry_unserved();
            }
            // 4. Remove the nodes that have left.
            longest_wait = self.topology.remove_unused().then_some(UNUSED_CHECK_INTERVAL);
            // 5. Pause. Request the next refresh here while a channel has no node, or until the
            //    replica of a failed node takes over: nothing else may request a refresh.
            if !self.timer.pause(matches!(refreshed, Ok(true))) {
                break;
            }
            if !all_served || self.timer.has_recent_failure() {
                self.refresh_soon(false);
            }
        }
    }

    /// Queries one node after another, until a node answers. Returns whether the topology has
    /// changed.
    fn refresh(&self, deadline: &mut Deadline) -> Result<bool, Failure> {
        let candidates = self.candidates();
        self.query_servers.lock().retain(|address, _| candidates.contains(address));
        let mut failure = None;
        for (address, share) in with_shares(&candidates, *deadline) {
            // With many nodes a share is short. Extend it to cover some round trips over a long
            // distance.
            let left = deadline.refresh().left().unwrap_or_default();
            let share = share.max(left.min(self.factory.command_timeout / 4));
            match self.query(address, &mut Deadline::after(share)) {
                Ok(description) => return Ok(self.topology.learn(&description)),
                // Refused credentials are more informative than a later node that is down.
                Err(_)
                    if matches!(
                        failure,
                        Some(Failure::Unauthenticated { .. } | Failure::WrongTarget { .. })
                    ) => {}
                Err(other) => failure = Some(other),
            }
        }
        Err(failure.unwrap_or_else(|| self.topology.no_node()))
    }

    /// Returns the addresses to query: the known nodes in random order, because a node that is cut
    /// off may have outdated information, and then the seeds.
    fn candidates(&self) -> Vec<Address> {
        let nodes = self.topology.nodes();
        let mut candidates: Vec<Address> =
            nodes.iter().filter_map(|node| node.address().cloned()).collect();
        fastrand::shuffle(&mut candidates);
        for seed in &self.seeds {
            if !candidates.contains(seed) {
                candidates.push(seed.clone());
            }
        }
        candidates
    }

    /// Queries the node at `address` for its description of the cluster, on a separate connection:
    /// waiting callers may use all connections of the pool.
    fn query(&self, address: &Address, deadline: &mut Deadline) -> Result<Description, Failure> {
        let known_channels = self.topology.channels();
        let new = || Arc::new(self.factory.server(address.clone(), Channels::Everywhere));
        let server = {
            let mut servers = self.query_servers.lock();
            Arc::clone(servers.entry(address.clone()).or_insert_with(new))
        };
        let mut connection = server.connect(deadline)?;
        self.query_connections.fetch_add(1, Ordering::Relaxed);
        let description = query_description(&mut connection, address, known_channels, deadline);
        description.map_err(|broken| match server.no_reply(broken, ServerTime(0)) {
            // A query changes nothing, so an unknown outcome counts as not sent.
            Failure::Unknown { reason, .. } => {
                Failure::NotSent { server: address.to_string(), reason }
            }
            failure => failure,
        })?
    }
}

impl RedirectSink for Refresher {
    fn redirected(&self, to: Option<Redirection>) {
        match to {
            Some(Redirection::Moved { slot, to }) => drop(self.learn_owner(slot, &to)),
            _ => self.refresh_soon(false),
        }
    }
}

/// Pairs each item with an equal share of the time left at its turn.
pub(crate) fn with_shares<T>(
    items: &[T],
    mut deadline: Deadline,
) -> impl Iterator<Item = (&T, Duration)> {
    let remaining = (1..=u32::try_from(items.len()).unwrap_or(u32::MAX)).rev();
    items.iter().zip(remaining).map(move |(item, remaining)| {
        (item, deadline.refresh().left().unwrap_or_default() / remaining)
    })
}
