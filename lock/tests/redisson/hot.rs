//! One hot lock: many threads of one of our clients beside Java threads. Never two are inside, and
//! each thread gets in.
//!
//! The threads inside are counted on another server. The short form is part of every run;
//! `REDISSON_SECTIONS` says how many critical sections there are to be, for example 100,000.

use std::env;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use wheellock::{Client, Lock};
use wheellock_fixture::{Cluster, RawConnection, Reply, Server};

use crate::common::slots::home;
use crate::peer::{JavaThread, Peer};
use crate::shared::{LIMIT, alone, fresh, now, start};

const OUR_THREADS: usize = 16;
const JAVA_THREADS: usize = 4;
/// One of so many sections is Java's.
const JAVA_SHARE: usize = 10;
/// What a Java thread is told at once. One answer may take two minutes.
const BATCH: usize = 10;

fn sections() -> usize {
    env::var("REDISSON_SECTIONS").map_or(3_000, |text| text.parse().unwrap())
}

/// Where those inside are counted.
struct Marker<'a> {
    address: SocketAddr,
    counter: &'a str,
    inside: &'a str,
}

impl Marker<'_> {
    fn connect(&self) -> RawConnection {
        RawConnection::open(self.address).unwrap()
    }

    /// One critical section of ours.
    fn visit(&self, server: &mut RawConnection) {
        assert_eq!(server.command(&["INCR", self.inside]).integer(), 1, "two are inside");
        let count = self.count(server);
        server.command(&["SET", self.counter, &(count + 1).to_string()]);
        assert_eq!(server.command(&["DECR", self.inside]).integer(), 0, "two were inside");
    }

    fn count(&self, server: &mut RawConnection) -> usize {
        match server.command(&["GET", self.counter]) {
            Reply::Nil => 0,
            reply => reply.text().parse().unwrap(),
        }
    }
}

/// One hot lock, and who wants it.
struct Hot<'a> {
    client: &'a Client,
    java: &'a Peer,
    /// The lock, as we and as Java call it.
    names: (&'a str, &'a str),
    marker: Marker<'a>,
}

impl Hot<'_> {
    /// Our threads go on until Java has done its share, so that it gets all of it beside them.
    fn assert_all_get_in_alone(&self) {
        let java_times = (sections() / JAVA_SHARE / JAVA_THREADS).next_multiple_of(BATCH);
        let our_times = (sections() - java_times * JAVA_THREADS).div_ceil(OUR_THREADS);
        let java_at_work = AtomicUsize::new(JAVA_THREADS);
        let began = now();
        let ours: Vec<usize> = thread::scope(|scope| {
            let java: Vec<_> = (0..JAVA_THREADS)
                .map(|_| {
                    start(scope, || {
                        let _done = Countdown(&java_at_work);
                        self.count_in_java(&self.java.thread(), java_times);
                    })
                })
                .collect();
            let ours: Vec<_> = (0..OUR_THREADS)
                .map(|number| {
                    // Both are Redisson's plain lock, and for us two kinds.
                    let (client, name) = (self.client, self.names.0);
                    let lock = if number % 4 == 3 {
                        client.non_reentrant_lock(name)
                    } else {
                        client.lock(name)
                    };
                    let java_at_work = &java_at_work;
                    start(scope, move || self.count(&lock, our_times, java_at_work))
                })
                .collect();
            let ours = ours.into_iter().map(|thread| thread.join().unwrap()).collect();
            for thread in java {
                thread.join().unwrap();
            }
            ours
        });
        let took = now().saturating_duration_since(began);
        let all = ours.iter().sum::<usize>() + java_times * JAVA_THREADS;
        println!(
            "{all} sections in {took:?}, {} of them in Java; of our threads the first had {}, the last {}",
            java_times * JAVA_THREADS,
            ours.iter().max().unwrap(),
            ours.iter().min().unwrap(),
        );
        assert_eq!(self.marker.count(&mut self.marker.connect()), all, "two were inside");
        assert!(self.client.lock(self.names.0).try_lock_for(LIMIT).unwrap().is_some());
        assert_eq!(self.client.stats().lost, 0);
    }

    fn count_in_java(&self, java: &JavaThread<'_>, times: usize) {
        let Marker { counter, inside, .. } = self.marker;
        let operation = format!("count counter={counter} inside={inside} times={BATCH}");
        for _ in 0..times / BATCH {
            assert_eq!(java.call("lock", self.names.1, &operation), BATCH.to_string());
        }
    }

    /// One thread of ours: so often, and then on while Java is at work. Says how often it was.
    fn count(&self, lock: &Lock, times: usize, java_at_work: &AtomicUsize) -> usize {
        let mut server = self.marker.connect();
        let mut done = 0;
        while done < times || java_at_work.load(Ordering::SeqCst) > 0 {
            let guard = lock.lock().unwrap();
            self.marker.visit(&mut server);
            done += 1;
            if done % 2 == 0 {
                drop(guard);
            } else {
                guard.unlock().unwrap();
            }
        }
        done
    }
}

/// Counts down at its end, also by a panic: otherwise our threads would go on for ever.
struct Countdown<'a>(&'a AtomicUsize);

impl Drop for Countdown<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn java_and_many_rust_threads_never_hold_hot_lock_together() {
    let _alone = alone();
    let (marker, locks) = (Server::start(), Server::start());
    let java = Peer::start(&[], &[&marker, &locks]);
    let client = Client::connect(&locks.url()).unwrap();
    Hot {
        client: &client,
        java: &java,
        names: ("hot", "hot@1"),
        marker: Marker { address: marker.address(), counter: "counter", inside: "inside" },
    }
    .assert_all_get_in_alone();
}

#[test]
#[ignore = "needs the Java program: ./run-tests --all builds it"]
fn in_a_cluster_java_and_many_threads_of_ours_share_a_hot_lock() {
    let _alone = alone();
    let cluster = Cluster::start(3, 0);
    let nodes = cluster.nodes();
    let nodes: Vec<&Server> = nodes.iter().map(|node| &**node).collect();
    let java = Peer::start(&["cluster=1"], &nodes);
    let client = Client::connect(&cluster.url()).unwrap();
    let (name, counter, inside) = (fresh("hot"), fresh("{marker}counter"), fresh("{marker}inside"));
    let address = home(&cluster, &counter).address();
    Hot {
        client: &client,
        java: &java,
        names: (&name, &name),
        marker: Marker { address, counter: &counter, inside: &inside },
    }
    .assert_all_get_in_alone();
}
