//! Who holds a lock and who waits for it, which any process may ask, and what this one holds.

use wheellock::{Client, Error};

pub(crate) fn run(client: &Client) -> Result<(), Error> {
    let lock = client.lock("everyday:orders:43");
    let guard = lock.lock()?;
    if let Some(holder) = lock.holder()? {
        let label = holder.label.unwrap_or(holder.owner); // of another client after a second
        println!("who holds: {label}, {:?} left unless it is renewed", holder.remaining);
    }
    let waiters = lock.waiters()?;
    println!("who holds: {} threads wait here, elsewhere {:?}", waiters.here, waiters.elsewhere);
    for hold in client.holds() {
        let (name, by, renewals) = (hold.name, hold.holder, hold.renewals);
        println!("who holds: {name} by {by:?} for {:?}, renewed {renewals} times", hold.held_for);
    }
    guard.unlock()
}
