//! Java's holders and waiters as this library shows them.

use wheellock::{Client, HolderKind};
use wheellock_fixture::wait_until;

use crate::common::SOON;
use crate::peer::Peer;
use crate::shared::{SERVER, alone, fresh};

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn a_holder_in_java_is_shown_as_what_can_be_known_of_it() {
    let _alone = alone();
    let peer = Peer::start(&[], &[&SERVER]);
    let java = peer.thread();
    let client = Client::connect(&SERVER.url()).unwrap();
    for (word, shared) in
        [("lock", false), ("fair", false), ("fenced", false), ("read", true), ("write", false)]
    {
        let name = fresh(word);
        java.call(word, &name, "lock");
        let status = client.status(&name).unwrap();
        let [holder] = status.holders.as_slice() else { panic!("{word}: {status:?}") };
        let fields = SERVER.command(&["HKEYS", &name]).texts();
        assert!(fields.iter().any(|field| field.trim_end_matches(":write") == holder.owner));
        assert_eq!((holder.kind, holder.shared), (HolderKind::Redisson, shared), "{word}");
        assert_eq!((holder.label.as_ref(), holder.held_for, holder.watched), (None, None, None));
        assert!(!holder.remaining.is_zero() && holder.count == 1, "{holder:?}");
        java.call(word, &name, "unlock");
        assert!(client.status(&name).unwrap().holders.is_empty(), "{word}");
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn waiters_in_java_are_counted_and_those_of_a_fair_lock_listed() {
    let _alone = alone();
    let peer = Peer::start(&[], &[&SERVER]);
    let (first, second) = (peer.thread(), peer.thread());
    let client = Client::connect(&SERVER.url()).unwrap();
    for word in ["lock", "fair"] {
        let name = fresh(word);
        let waiters = || match word {
            "fair" => client.fair_lock(&name).waiters().unwrap(),
            _ => client.lock(&name).waiters().unwrap(),
        };
        let guard = match word {
            "fair" => client.fair_lock(&name).lock().unwrap(),
            _ => client.lock(&name).lock().unwrap(),
        };
        assert_eq!(waiters().elsewhere, Some(0), "{word}");
        let granted = first.send(word, &name, "lock");
        wait_until("one waits", SOON, || waiters().elsewhere == Some(1));
        if word == "fair" {
            let next = second.send(word, &name, "lock");
            wait_until("two queue", SOON, || waiters().queue.len() == 2);
            let queue = waiters().queue;
            assert!(queue.iter().all(|waiter| waiter.kind == HolderKind::Redisson), "{queue:?}");
            guard.unlock().unwrap();
            granted.value();
            let holder = client.fair_lock(&name).holder().unwrap().unwrap();
            assert_eq!(holder.owner, queue[0].owner);
            first.call(word, &name, "unlock");
            next.value();
            second.call(word, &name, "unlock");
        } else {
            guard.unlock().unwrap();
            granted.value();
            first.call(word, &name, "unlock");
        }
    }
}
