//! The servers of a client: one server, one with a replica, a master and its sentinel, a cluster
//! node.

use std::sync::Arc;

use wheellock_fixture::{Aim, Cluster, Fault, Proxy, Sentinels, Server, wait_until};

use crate::common::SOON;
use crate::sends::Sends;

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Alone,
    /// The client wants a replica to hear of what is granted.
    WithReplica,
    BehindSentinels,
    InCluster,
}

/// What a client connects to, through a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Server,
    /// The sentinel; in a cluster what the first one redirects to.
    Other,
}

/// The servers themselves.
#[derive(Debug)]
pub(crate) enum Servers {
    Alone(Server),
    WithReplica {
        server: Server,
        replica: Box<Server>,
    },
    BehindSentinels(Sentinels),
    /// All slots are this node's.
    InCluster {
        node: Arc<Server>,
        _cluster: Cluster,
    },
}

/// The proxies in front of the servers, one for each [`Endpoint`].
#[derive(Debug)]
pub(crate) struct Proxies {
    pub(crate) server: Proxy,
    pub(crate) other: Option<Proxy>,
}

/// A user with a password.
pub(crate) const USER: &str = "matrix";
pub(crate) const PASSWORD: &str = "secret";

impl Servers {
    pub(crate) fn start(kind: Kind) -> Self {
        match kind {
            Kind::Alone => {
                let rule = format!("{USER} on >{PASSWORD} ~* &* +@all");
                Self::Alone(Server::builder().user(&rule).start())
            }
            Kind::WithReplica => {
                let server = Server::start();
                let replica = Server::builder().replica_of(server.address()).start();
                Self::WithReplica { server, replica: Box::new(replica) }
            }
            Kind::BehindSentinels => {
                Self::BehindSentinels(Sentinels::builder().replicas(0).sentinels(1).start())
            }
            Kind::InCluster => {
                let cluster = Cluster::start(1, 0);
                let [node] = cluster.nodes().try_into().unwrap();
                Self::InCluster { node, _cluster: cluster }
            }
        }
    }

    /// Where the locks lie.
    pub(crate) fn server(&self) -> &Server {
        match self {
            Self::Alone(server) | Self::WithReplica { server, .. } => server,
            Self::BehindSentinels(sentinels) => &sentinels.servers()[0],
            Self::InCluster { node, .. } => node,
        }
    }

    /// The server behind the proxy of `endpoint`.
    fn behind(&self, endpoint: Endpoint) -> &Server {
        match (self, endpoint) {
            (Self::BehindSentinels(sentinels), Endpoint::Other) => &sentinels.sentinels()[0],
            _ => self.server(),
        }
    }

    /// How many listen to the sentinel. None while it is started again.
    pub(crate) fn listeners(&self) -> usize {
        let listed =
            self.behind(Endpoint::Other).try_command(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        listed.map_or(0, |listed| listed.text().lines().count())
    }

    /// New proxies, whose addresses the servers announce.
    pub(crate) fn start_proxies(&self) -> Proxies {
        let server = Proxy::start(self.server().address());
        let has_other = matches!(self, Self::BehindSentinels(_) | Self::InCluster { .. });
        let other = has_other.then(|| Proxy::start(self.behind(Endpoint::Other).address()));
        let proxies = Proxies { server, other };
        self.announce(&proxies);
        proxies
    }

    fn announce(&self, proxies: &Proxies) {
        let address = proxies.server.address();
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        match self {
            Self::BehindSentinels(sentinels) => {
                let sentinel = &sentinels.sentinels()[0];
                be_quiet(sentinel);
                let before = proxies.server.accepted();
                sentinel.command(&["SENTINEL", "REMOVE", Sentinels::NAME]);
                let watch = ["SENTINEL", "MONITOR", Sentinels::NAME, &host, &port, "1"];
                assert!(!sentinel.command(&watch).is_error());
                // It connects here too, for commands and for messages, and then never again.
                wait_until("the sentinel has come", SOON, || {
                    proxies.server.accepted() > before + 1
                });
            }
            Self::InCluster { node, .. } => {
                let announce = ["CONFIG", "SET", "cluster-announce-port", &port];
                assert!(!node.command(&announce).is_error());
            }
            Self::Alone(_) | Self::WithReplica { .. } => {}
        }
    }

    /// Lets go on what was kept from it when something else was started again.
    pub(crate) fn resume(&self) {
        if let Self::WithReplica { replica, .. } = self {
            replica.resume();
        }
    }

    /// Kills the server of `endpoint` and starts it again, without its keys.
    pub(crate) fn restart(&self, proxies: &Proxies, endpoint: Endpoint) {
        let Self::InCluster { node, .. } = self else {
            if let Self::WithReplica { replica, .. } = self {
                // It would come back at some time within the next second.
                replica.pause();
            }
            self.behind(endpoint).restart();
            if let (Self::BehindSentinels(sentinels), Endpoint::Other) = (self, endpoint) {
                be_quiet(&sentinels.sentinels()[0]);
            }
            return;
        };
        // It would name its own port until it is told of the proxy's.
        proxies.refuse(true);
        node.restart();
        self.announce(proxies);
        proxies.refuse(false);
    }
}

/// Keeps a sentinel from coming back to a master that it has lost: it would take what is meant for
/// the client.
fn be_quiet(sentinel: &Server) {
    const HOUR: &str = "3600000";
    let command = ["SENTINEL", "DEBUG", "PING-PERIOD", HOUR, "INFO-PERIOD", HOUR];
    assert!(!sentinel.command(&command).is_error());
}

impl Proxies {
    pub(crate) fn at(&self, endpoint: Endpoint) -> &Proxy {
        match (endpoint, &self.other) {
            (Endpoint::Other, Some(other)) => other,
            _ => &self.server,
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Proxy> {
        std::iter::once(&self.server).chain(&self.other)
    }

    /// How often a sentinel is asked from now on.
    pub(crate) fn asked_for_the_master(&self) -> Aim {
        let asks = Sends::Command("SENTINEL GET-MASTER-ADDR-BY-NAME").matcher();
        self.at(Endpoint::Other).on(asks, Fault::PassOn).always()
    }

    fn refuse(&self, refuse: bool) {
        self.all().for_each(|proxy| proxy.refuse(refuse));
    }
}
