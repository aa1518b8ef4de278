//! A guard that travels: acquired on one thread, held by a task, released on another thread.

use std::error::Error;
use std::time::Duration;

use tokio::task::spawn_blocking;
use wheellock::Client;

pub(crate) async fn run(client: &Client) -> Result<(), Box<dyn Error>> {
    let lock = client.lock("everyday:invoices").sendable();
    let guard = spawn_blocking(move || lock.try_lock_for(Duration::from_secs(5))).await??;
    let guard = guard.ok_or("another process writes the invoices")?;
    let task = tokio::spawn(async move {
        tokio::select! {
            Some(reason) = guard.lost_future()? => println!("sendable guard: lost, {reason}"),
            () = tokio::time::sleep(Duration::from_millis(50)) => {
                spawn_blocking(|| guard.unlock()).await.map_err(std::io::Error::from)??;
                println!("sendable guard: written and released");
            }
        }
        Ok::<(), Box<dyn Error + Send + Sync>>(())
    });
    task.await?.map_err(|error| error as Box<dyn Error>)
}
