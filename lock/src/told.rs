//! Who is told when a hold is lost: somebody who looks at this hold alone, or at several that stand together.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;

use crate::error::LostReason;

/// One who is told. Dropped without a word when the hold is released.
#[derive(Debug)]
pub(crate) enum Listener {
    Alone(Sender<LostReason>),
    Together(Arc<Together>),
}

impl Listener {
    /// The hold is lost.
    pub(crate) fn tell(self, reason: LostReason) {
        match self {
            // Room for one is all it needs. Nobody may be listening any more.
            Self::Alone(sender) => {
                let _gone = sender.try_send(reason);
            }
            Self::Together(together) => together.one_is_lost(reason),
        }
    }
}

/// Holds that are lost together, when fewer than a quorum of them are left.
#[derive(Debug)]
pub(crate) struct Together {
    quorum: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    held: usize,
    /// `None` once it was told, or nothing more is to be told.
    tell: Option<Sender<LostReason>>,
}

impl Together {
    /// For that many holds, each of which is given a [`Listener`] with a clone.
    pub(crate) fn new(held: usize, quorum: usize) -> (Arc<Self>, Receiver<LostReason>) {
        let (tell, told) = bounded(1);
        let state = Mutex::new(State { held, tell: Some(tell) });
        (Arc::new(Self { quorum, state }), told)
    }

    /// One more hold. It is given a listener too.
    pub(crate) fn join(&self) {
        self.state.lock().held += 1;
    }

    /// They are released: the channel closes without a message.
    pub(crate) fn close(&self) {
        self.state.lock().tell = None;
    }

    fn one_is_lost(&self, reason: LostReason) {
        let mut state = self.state.lock();
        state.held = state.held.saturating_sub(1);
        if state.held < self.quorum
            && let Some(tell) = state.tell.take()
        {
            // Nobody may be listening any more.
            let _gone = tell.try_send(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::TryRecvError;

    use super::*;

    #[test]
    fn the_loss_that_leaves_less_than_the_quorum_is_told_and_no_other() {
        let (together, told) = Together::new(4, 3);
        Listener::Together(Arc::clone(&together)).tell(LostReason::Deleted);
        assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
        Listener::Together(Arc::clone(&together)).tell(LostReason::Expired);
        assert_eq!(told.try_recv(), Ok(LostReason::Expired));
        Listener::Together(together).tell(LostReason::TakenOver);
        assert_eq!(told.try_recv(), Err(TryRecvError::Disconnected));
    }

    #[test]
    fn one_more_hold_is_one_more_that_can_be_lost() {
        let (together, told) = Together::new(3, 3);
        together.join();
        Listener::Together(Arc::clone(&together)).tell(LostReason::Deleted);
        assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
        together.close();
        assert_eq!(told.try_recv(), Err(TryRecvError::Disconnected));
    }
}
