//! One of several processes leads: each of them campaigns, and waits for its term.

use wheellock::{Client, Error};

pub(crate) fn run(client: &Client) -> Result<(), Error> {
    let election = client.leader_election("everyday:scheduler");
    let campaign = election.campaign()?;
    let Some(term) = campaign.next_term() else {
        return campaign.error().map_or(Ok(()), Err);
    };
    for step in ["plan", "assign", "report"] {
        if !term.is_leader() {
            break; // lost: another process leads, or will
        }
        println!("leader: {step} in term {}", term.number());
    }
    if let Some(leader) = election.leader()? {
        println!("leader: {} leads", leader.label.unwrap_or(leader.owner)); // any process may ask
    }
    term.resign() // an error if it did not lead any more
}
