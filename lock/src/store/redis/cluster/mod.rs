//! A Redis Cluster: the topology, and the routing of operations to the nodes of their hash slots.

pub(crate) mod cluster;
pub(crate) mod nodes;
pub(crate) mod refresh;
pub(crate) mod refresh_timer;
pub(crate) mod slot_map;
pub(crate) mod slots_query;
pub(crate) mod slots_reply;
pub(crate) mod subscriptions;
pub(crate) mod topology;
