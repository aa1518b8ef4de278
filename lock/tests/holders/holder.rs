//! What `holder`, `holders` and `status` return.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::Duration;

use crate::common::stores::{TestStore, on_all_stores};
use crate::common::{SOON, built, now, pause, wait_for_a_waiter};
use wheellock::{Client, Error, HolderKind, LockKind, OwnHolder};
use wheellock_fixture::{Server, wait_until};

/// A thread of Redisson, as its owner shows.
const JAVA: &str = "7f9a3b7e-0f0e-4c3f-9a51-2f4a5d8f0c11:42";

on_all_stores! {
    fn holder_is_the_guard_owner_and_none_after_release(setup: &TestStore) {
        let client = setup.client();
        let lock = client.lock("a");
        assert_eq!(lock.holder().unwrap(), None);
        let guard = lock.lock().unwrap();
        let holder = lock.holder().unwrap().unwrap();
        assert_eq!(holder.owner, guard.owner());
        assert_eq!((holder.kind, holder.count), (HolderKind::Wheellock, 1));
        assert_eq!(holder.process, Some(std::process::id()));
        assert_eq!((holder.watched, holder.shared), (Some(true), false));
        assert!(holder.remaining > Duration::from_secs(20), "{:?}", holder.remaining);
        let nested = lock.lock().unwrap();
        assert_eq!(lock.holder().unwrap().unwrap().count, 2);
        nested.unlock().unwrap();
        guard.unlock().unwrap();
        assert_eq!(lock.holder().unwrap(), None);
    }

    fn a_lease_of_its_own_is_seen(setup: &TestStore) {
        let lock = setup.client().lock("a").with_lease(Duration::from_secs(5));
        let _guard = lock.lock().unwrap();
        let holder = lock.holder().unwrap().unwrap();
        assert_eq!(holder.watched, Some(false));
        assert!(holder.remaining <= Duration::from_secs(5), "{:?}", holder.remaining);
    }

    fn readers_are_all_shown_and_a_writer_is_not_one(setup: &TestStore) {
        let (first, second) = (setup.client(), setup.client());
        let prices = first.read_write_lock("prices");
        let reading = prices.read_lock().lock().unwrap();
        let also = second.read_write_lock("prices").read_lock().lock().unwrap();
        let mut owners: Vec<_> =
            prices.read_lock().holders().unwrap().into_iter().map(|holder| holder.owner).collect();
        owners.sort();
        let mut expected = [reading.owner().to_owned(), also.owner().to_owned()];
        expected.sort();
        assert_eq!(owners, expected);
        assert_eq!(prices.write_lock().holder().unwrap(), None);
        reading.unlock().unwrap();
        also.unlock().unwrap();

        let writing = prices.write_lock().lock().unwrap();
        let writer = prices.write_lock().holder().unwrap().unwrap();
        assert_eq!((writer.owner.as_str(), writer.shared), (writing.owner(), false));
        assert_eq!(prices.read_lock().holder().unwrap(), None);
    }

    fn each_kind_is_recognized(setup: &TestStore) {
        let client = setup.client();
        client.semaphore("number").try_set_permits(3).unwrap();
        client.expirable_semaphore("permits").try_set_permits(2).unwrap();
        let _permit = client.expirable_semaphore("permits").acquire().unwrap();
        let _simple = client.simple_lock("simple").lock().unwrap();
        let _fenced = client.fenced_lock("fenced").lock().unwrap();
        let _spin = client.spin_lock("spin").lock().unwrap();
        let _write = client.read_write_lock("write").write_lock().lock().unwrap();
        for (name, kind, holders, number) in [
            ("free", None, 0, None),
            ("number", Some(LockKind::Number), 0, Some(3)),
            ("permits", Some(LockKind::ExpirableSemaphore), 0, Some(1)),
            ("simple", Some(LockKind::Simple), 1, None),
            ("fenced", Some(LockKind::Fenced), 1, None),
            ("spin", Some(LockKind::Lock), 1, None),
            ("write", Some(LockKind::ReadWrite), 1, None),
        ] {
            let status = client.status(name).unwrap();
            let found = (status.kind, status.holders.len(), status.number);
            assert_eq!(found, (kind, holders, number), "{name}");
            assert_eq!(status.holder_count, holders);
            assert!(status.holders.iter().all(|holder| holder.label.is_some()), "{name}");
        }
    }

    fn what_is_not_a_lock_is_an_error(setup: &TestStore) {
        setup.put_text("a");
        let error = setup.client().lock("a").holder().unwrap_err();
        assert!(matches!(error, Error::WrongType { .. }), "{error:?}");
    }
}

fn labelled(server: &Server, label: &str) -> Client {
    built(Client::builder().url(&server.url()).label(label))
}

#[test]
fn remote_holder_is_shown_with_label_and_hold_duration() {
    let server = Server::start();
    let (holder, other) = (labelled(&server, "billing on db3"), labelled(&server, "operator"));
    let began = now();
    let guard = holder.lock("a").lock().unwrap();
    let seen = || other.lock("a").holder().unwrap().unwrap();
    // The time that the record took to be written is missing.
    wait_until("the record is there", SOON, || {
        seen().held_for.is_some_and(|held_for| held_for > Duration::from_millis(500))
    });
    let seen = seen();
    assert_eq!(seen.owner, guard.owner());
    assert_eq!(seen.label.as_deref(), Some("billing on db3"));
    assert_eq!((seen.process, seen.watched), (Some(std::process::id()), Some(true)));
    let held_for = seen.held_for.unwrap();
    let longest = now().saturating_duration_since(began) + Duration::from_millis(5);
    assert!(held_for <= longest, "{held_for:?}");
}

#[test]
fn a_holder_that_has_waited_holds_since_its_grant() {
    let server = Server::start();
    let (first, second) = (labelled(&server, "first"), labelled(&server, "second"));
    let guard = first.lock("a").lock().unwrap();
    thread::scope(|scope| {
        let lock = second.lock("a");
        let waiter = scope.spawn(move || {
            let guard = lock.lock().unwrap();
            wait_until("the record is there", SOON, || {
                first.lock("a").holder().unwrap().is_some_and(|holder| holder.label.is_some())
            });
            (first.lock("a").holder().unwrap().unwrap(), guard.owner().to_owned(), now())
        });
        wait_for_a_waiter(&second);
        pause(Duration::from_millis(2500));
        let released = now();
        guard.unlock().unwrap();
        let (holder, owner, seen) = waiter.join().unwrap();
        assert_eq!(holder.owner, owner);
        let held_for = holder.held_for.unwrap();
        // Its last try may have begun before the release, but not its wait.
        let longest = seen.saturating_duration_since(released) + Duration::from_secs(2);
        assert!(held_for <= longest, "{held_for:?} of {longest:?}");
    });
}

#[test]
fn a_java_holder_is_shown_as_what_can_be_known_of_it() {
    let server = Server::start();
    let client = labelled(&server, "ours");
    server.command(&["HSET", "a", JAVA, "2"]);
    server.command(&["PEXPIRE", "a", "30000"]);
    let holder = client.lock("a").holder().unwrap().unwrap();
    assert_eq!((holder.owner.as_str(), holder.kind, holder.count), (JAVA, HolderKind::Redisson, 2));
    assert_eq!((holder.label, holder.held_for, holder.watched), (None, None, None));
    assert!(holder.remaining <= Duration::from_secs(30) && !holder.remaining.is_zero());
}

#[test]
fn of_very_many_readers_some_are_shown_and_all_are_counted() {
    let server = Server::start();
    let client = labelled(&server, "ours");
    server.command(&["HSET", "a", "mode", "read"]);
    for from in (0..5000).step_by(500) {
        let fields: Vec<String> =
            (from..from + 500).map(|reader| JAVA.replace("42", &reader.to_string())).collect();
        let mut command = vec!["HSET", "a"];
        command.extend(fields.iter().flat_map(|field| [field.as_str(), "1"]));
        server.command(&command);
    }
    let status = client.status("a").unwrap();
    assert_eq!((status.holders.len(), status.holder_count), (1000, 5000));
    assert_eq!(status.kind, Some(LockKind::ReadWrite));
}

#[test]
fn a_label_out_of_its_bounds_is_an_error_of_the_builder() {
    for label in [String::new(), "x".repeat(257)] {
        let error = Client::builder().url("redis://127.0.0.1:1/").label(&label).build();
        assert!(matches!(error, Err(Error::InvalidSetting { setting: "label", .. })), "{error:?}");
    }
}

#[test]
fn locks_of_all_kinds_are_listed_and_nothing_else() {
    for cluster in [false, true] {
        let setup = if cluster { TestStore::in_a_cluster() } else { TestStore::on_a_server() };
        let client = built(match &setup {
            TestStore::Cluster(cluster) => Client::builder().url(&cluster.url()),
            TestStore::Redis(server) => Client::builder().url(&server.url()),
            TestStore::Memory(_) | TestStore::Endpoint(..) => unreachable!(),
        });
        let app = client.with_prefix("app[1]:");
        let _held = [app.lock("a").lock().unwrap(), app.fair_lock("b").lock().unwrap()];
        let _simple = app.simple_lock("c").lock().unwrap();
        let _fenced = app.fenced_lock("d").lock().unwrap();
        let _reading = app.read_write_lock("e").read_lock().lock().unwrap();
        app.semaphore("f").try_set_permits(3).unwrap();
        app.expirable_semaphore("g").try_set_permits(2).unwrap();
        let _permit = app.expirable_semaphore("g").acquire().unwrap();
        setup.put_text("app[1]:other data");
        let _another = client.lock("app1:z").lock().unwrap();
        let mut listed: Vec<_> = app
            .locks("*")
            .map(|status| status.map(|status| (status.name, status.kind.unwrap())).unwrap())
            .collect();
        listed.sort_by(|one, other| one.0.cmp(&other.0));
        let expected = [
            ("a", LockKind::Lock),
            ("b", LockKind::Lock),
            ("c", LockKind::Simple),
            ("d", LockKind::Fenced),
            ("e", LockKind::ReadWrite),
            ("f", LockKind::Number),
            ("g", LockKind::ExpirableSemaphore),
        ];
        assert_eq!(listed, expected.map(|(name, kind)| (format!("app[1]:{name}"), kind)));
        assert!(client.locks("nothing like*").next().is_none());
    }
}

#[test]
fn the_own_holds_are_listed_with_their_holders_and_renewals() {
    let server = Server::start();
    let client = built(Client::builder().url(&server.url()).watchdog_lease(Duration::from_secs(4)));
    assert!(client.holds().is_empty());
    let watched = client.lock("a").lock().unwrap();
    let nested = client.lock("a").lock().unwrap();
    let leased = client.fair_lock("b").with_lease(Duration::from_secs(60)).with_owner("task");
    let leased = leased.lock().unwrap();
    wait_until("a renewal", SOON, || {
        client.holds().iter().any(|hold| hold.name == "a" && hold.renewals > 1)
    });
    let mut holds = client.holds();
    holds.sort_by(|one, other| one.name.cmp(&other.name));
    let [first, second] = holds.as_slice() else { panic!("{holds:?}") };
    assert_eq!((first.kind, first.owner.as_str()), ("lock", watched.owner()));
    assert_eq!(first.holder, OwnHolder::Thread(thread::current().id()));
    assert_eq!((first.watched, first.guards), (true, 2));
    assert_eq!((second.kind, second.owner.as_str()), ("fair", leased.owner()));
    assert_eq!(second.holder, OwnHolder::Named("task".to_owned()));
    assert_eq!((second.watched, second.guards, second.renewals), (false, 1, 0));
    assert!(second.remaining > Duration::from_secs(30));
    drop((watched, nested, leased));
    assert!(client.holds().is_empty());
}
