//! A forked client behind sentinels: the child follows the master on its own connections.

use std::time::Duration;

use crate::common::forked::Child;
use crate::ran_in_a_child;
use wheellock::{Client, LostReason};
use wheellock_fixture::{Sentinels, wait_until};

const SOON: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(600);
/// Longer than all together that the parent may do before it waits for the child.
const LATER: Duration = Duration::from_secs(120);

#[test]
fn a_forked_client_follows_the_master_on_its_own_connections() {
    if ran_in_a_child(a_forked_client_follows_the_master_on_its_own_connections) {
        return;
    }
    let sentinels = Sentinels::start();
    let client = Client::connect(&sentinels.url()).unwrap();
    let kept = client.lock("kept").with_lease(LEASE).lock().unwrap();
    let replica = sentinels.replicas()[0];
    let replicated = |name: &str| replica.command(&["EXISTS", name]).integer() == 1;
    wait_until("it is replicated", SOON, || replicated("kept"));

    // The last handle of each process.
    let mut client = Some(client);
    let child = Child::doing(LATER + SOON, || {
        let client = client.take().unwrap();
        assert!(client.lock("kept").try_lock().unwrap().is_none());
        let own = client.lock("own").with_lease(LEASE).lock().unwrap();
        // Nothing is called meanwhile: the child's own thread finds it out.
        assert_eq!(own.lost().recv_timeout(LATER), Ok(LostReason::Deleted));
        let own = client.lock("own").lock().unwrap();
        own.unlock().unwrap();
        drop(client);
    });
    let client = client.unwrap();
    wait_until("the fork has a lock", SOON, || replicated("own"));
    replica.command(&["CONFIG", "SET", "replica-read-only", "no"]);
    replica.command(&["DEL", "own"]);
    let before = client.stats().connections_made;
    let new = sentinels.fail_over();
    child.wait();
    wait_until("the parent is there too", SOON, || client.stats().connections_made > before);
    assert!(kept.is_held() && replicated("kept"));
    assert_eq!(new.address(), replica.address());
    kept.unlock().unwrap();
    // If the old master took that, it is released again when the client learns of the new one.
    wait_until("it is free at the new master", SOON, || !replicated("kept"));
}
