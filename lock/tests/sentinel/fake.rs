//! A sentinel whose replies a test chooses.

use std::io::{self, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use wheellock_fixture::ReservedPort;

use crate::common::fake::{array, request};

/// Listens until it is stopped or dropped.
pub(crate) struct FakeSentinel {
    // Nothing else listens on the port of a stopped sentinel.
    port: ReservedPort,
    accepting: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    says: Mutex<Option<(SocketAddr, u64)>>,
    /// How often it was asked where the master is.
    asked: AtomicUsize,
    accepted: AtomicUsize,
    open: AtomicUsize,
    over: AtomicBool,
    /// Whether it closes the connection of a new subscriber.
    hangs_up: AtomicBool,
    /// The connections of those that listen to its messages.
    listeners: Mutex<Vec<TcpStream>>,
}

impl FakeSentinel {
    /// It reports the master there, with this epoch; or that it knows none.
    pub(crate) fn start(says: Option<(SocketAddr, u64)>) -> Self {
        let port = ReservedPort::new().unwrap();
        let listener = TcpListener::bind(port.address()).unwrap();
        let shared = Arc::new(Shared { says: Mutex::new(says), ..Shared::default() });
        let own = Arc::clone(&shared);
        let accept = move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if own.over.load(Ordering::SeqCst) {
                    return;
                }
                own.accepted.fetch_add(1, Ordering::SeqCst);
                own.open.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&own);
                let serve = move || {
                    // It ends when the client does.
                    drop(shared.serve(&stream));
                    shared.open.fetch_sub(1, Ordering::SeqCst);
                };
                thread::Builder::new().spawn(serve).unwrap();
            }
        };
        let accepting = thread::Builder::new().spawn(accept).unwrap();
        Self { port, accepting: Some(accepting), shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Refuses connections from now on. Open connections stay open.
    pub(crate) fn stop(&mut self) {
        let Some(accepting) = self.accepting.take() else { return };
        self.shared.over.store(true, Ordering::SeqCst);
        // The thread waits in `accept`.
        drop(TcpStream::connect(self.address()));
        accepting.join().unwrap();
    }

    pub(crate) fn says(&self, master: SocketAddr, epoch: u64) {
        *self.shared.says.lock() = Some((master, epoch));
    }

    /// From now on it confirms each SUBSCRIBE, and closes the connection.
    pub(crate) fn hang_up_on_listeners(&self) {
        self.shared.hangs_up.store(true, Ordering::SeqCst);
        for listener in self.shared.listeners.lock().drain(..) {
            listener.shutdown(Shutdown::Both).unwrap();
        }
    }

    /// From now on it knows no master.
    pub(crate) fn forget(&self) {
        *self.shared.says.lock() = None;
    }

    /// Publishes a switch to its subscribers.
    pub(crate) fn tell(&self, from: SocketAddr, to: SocketAddr) {
        self.tell_of("mymaster", from, to);
    }

    /// Publishes a switch of the master called `name` to its subscribers.
    pub(crate) fn tell_of(&self, name: &str, from: SocketAddr, to: SocketAddr) {
        let [from, to] = [from, to].map(|end| format!("{} {}", end.ip(), end.port()));
        self.publish("+switch-master", &format!("{name} {from} {to}"));
    }

    /// Publishes to its subscribers that it has promoted a replica.
    pub(crate) fn promote(&self) {
        self.publish("+promoted-slave", "slave 10.0.0.1:1 10.0.0.1 1 @ mymaster 10.0.0.1 2");
    }

    fn publish(&self, channel: &str, text: &str) {
        for mut listener in &*self.shared.listeners.lock() {
            listener.write_all(&array(&["message", channel, text])).unwrap();
        }
    }

    pub(crate) fn asked(&self) -> usize {
        self.shared.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Connections that are open now.
    pub(crate) fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// How many listen to its messages.
    pub(crate) fn listeners(&self) -> usize {
        self.shared.listeners.lock().len()
    }
}

impl Drop for FakeSentinel {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn serve(&self, mut stream: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let words = request(&mut reader)?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let says = *self.says.lock();
            let reply = match (words.as_slice(), says) {
                (["SENTINEL", "MASTER", _], Some((_, epoch))) => {
                    array(&["name", "mymaster", "config-epoch", &epoch.to_string()])
                }
                (["SENTINEL", "MASTER", _], None) => {
                    b"-ERR No such master with that name\r\n".to_vec()
                }
                (["SENTINEL", "SENTINELS", _], _) => array(&[]),
                (["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _], says) => {
                    self.asked.fetch_add(1, Ordering::SeqCst);
                    says.map_or(b"*-1\r\n".to_vec(), |(master, _)| {
                        array(&[&master.ip().to_string(), &master.port().to_string()])
                    })
                }
                (["SUBSCRIBE", channels @ ..], _) => {
                    let confirmed: Vec<u8> = channels
                        .iter()
                        .flat_map(|channel| array(&["subscribe", channel, "1"]))
                        .collect();
                    if self.hangs_up.load(Ordering::SeqCst) {
                        return stream.write_all(&confirmed);
                    }
                    self.listeners.lock().push(stream.try_clone()?);
                    confirmed
                }
                (["PING"], _) => array(&["pong", ""]),
                _ => b"-ERR what?\r\n".to_vec(),
            };
            stream.write_all(&reply)?;
        }
    }
}
