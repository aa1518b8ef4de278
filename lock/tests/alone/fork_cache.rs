//! A lock that a client has cached, in the child of a fork: the child has nothing of it.

use std::sync::Arc;
use std::time::Duration;

use crate::common::built;
use crate::common::forked::Child;
use crate::{LIMIT, ran_in_a_child};
use wheellock::{Client, Error, ManualClock};
use wheellock_fixture::{Server, wait_until};

const TIME: Duration = Duration::from_secs(1);

#[test]
fn the_child_of_a_fork_has_no_cached_lock() {
    if ran_in_a_child(the_child_of_a_fork_has_no_cached_lock) {
        return;
    }
    let server = Server::start();
    // Its time stands still, so the lock stays with its client for as long as the child takes.
    let parent = built(Client::builder().url(&server.url()).clock(Arc::new(ManualClock::new())));
    let lock = parent.lock("a").with_cache(TIME);
    wait_until("it is cached", LIMIT, || {
        lock.lock().unwrap().unlock().unwrap();
        parent.stats().cache.cached == 1
    });
    let hits = parent.stats().cache.hits;
    let owner = server.command(&["HKEYS", "a"]).texts();
    let mut inherited = Some((parent, lock));
    let child = Child::doing(LIMIT, || {
        let (parent, lock) = inherited.take().unwrap();
        assert_eq!(lock.try_lock().map(drop), Err(Error::Forked));
        assert_eq!(parent.stats().cache.cached, 0);
        assert!(parent.holds().is_empty());
        let own = Client::connect(&server.url()).unwrap();
        // Neither the drop of what is inherited nor the child's end releases the parent's lock.
        drop((parent, lock));
        assert!(own.lock("a").try_lock().unwrap().is_none());
    });
    child.wait();
    let (parent, lock) = inherited.unwrap();
    assert_eq!(server.command(&["HKEYS", "a"]).texts(), owner);
    let guard = lock.lock().unwrap();
    assert_eq!(parent.stats().cache.hits, hits + 1);
    assert_eq!([guard.owner()], owner[..]);
    guard.unlock().unwrap();
}
