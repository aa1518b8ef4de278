//! The renewal threads that there are, one for each server that has something to do.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::renewer::Renewer;
use crate::store::Lane;

/// All of them. Nothing that may block is done with them locked.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    all: Vec<Running>,
    /// Releases that were given up where no thread is any more, or none could be started.
    pub(super) abandoned: u64,
}

#[derive(Debug)]
struct Running {
    renewer: Arc<Renewer>,
    /// None once somebody waits for its end.
    thread: Option<JoinHandle<()>>,
}

impl Lanes {
    pub(super) fn find(&self, lane: Lane) -> Option<&Renewer> {
        // There are a few servers, so looking along them is quick.
        self.renewers().find(|renewer| renewer.lane == lane)
    }

    pub(super) fn renewers(&self) -> impl Iterator<Item = &Renewer> {
        self.all.iter().map(|running| &*running.renewer)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn add(&mut self, renewer: Arc<Renewer>, thread: JoinHandle<()>) {
        self.all.push(Running { renewer, thread: Some(thread) });
    }

    /// Forgets the thread of a server. It ends by itself.
    pub(super) fn remove(&mut self, lane: Lane) {
        self.all.retain(|running| running.renewer.lane != lane);
    }

    /// Has every thread look whether there is something to do.
    pub(super) fn wake(&self) {
        self.renewers().for_each(|renewer| renewer.parker.unpark());
    }

    /// The threads, to be waited for.
    pub(super) fn take_threads(&mut self) -> Vec<JoinHandle<()>> {
        self.all.iter_mut().filter_map(|running| running.thread.take()).collect()
    }
}
