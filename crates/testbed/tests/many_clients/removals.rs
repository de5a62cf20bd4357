//! The danger: a file goes while another client has bytes of it that are stored nowhere; nobody can store them any more, and
//! that client's other files wait behind them, or it cannot stop.

use bytes::Bytes;
use client::{Client, WriteAt};
use host::sim;
use protocol::id::InodeId;

use super::machines::Machines;
use super::plain;

const BYTES: usize = 50_000;

async fn make(client: &Client, name: &Bytes) -> InodeId {
    let inode = client.create_open(InodeId::ROOT, name.clone(), plain()).await.expect("the name is new").inode;
    client.write(inode, WriteAt::Offset(0), Bytes::from(vec![1; BYTES])).await.expect("there is room");
    inode
}

#[test]
fn what_others_removed_holds_nobody_up() {
    sim::explore(0..8, async |world, _| {
        let mut dice = world.dice();
        let machines = Machines::start(&world, 1 + dice.below(2) as usize, 2).await;
        let ((node, writer), (other, remover)) = (machines.client(0), machines.client(1));
        let (doomed, kept) = (Bytes::from_static(b"doomed"), Bytes::from_static(b"kept"));
        let (making, name) = (writer.clone(), doomed.clone());
        let other_made = remover.clone();
        let made = async move {
            let inode = make(&other_made, &name).await;
            other_made.fsync(inode, false).await.expect("it is stored");
            other_made.close(inode).await;
            inode
        };
        let inode = world.spawn(&world.host(other), made).await.unwrap();
        let overwritten = async move {
            making.open(inode).await.expect("it is there");
            let bytes = Bytes::from_static(b"not for long");
            making.write(inode, WriteAt::Offset(777), bytes).await.expect("there is room");
            making.close(inode).await;
        };
        world.spawn(&world.host(node), overwritten).await.unwrap();
        let removed = async move { remover.unlink(InodeId::ROOT, doomed).await };
        world.spawn(&world.host(other), removed).await.unwrap().expect("it is there");
        let stopped = async move {
            let inode = make(&writer, &kept).await;
            writer.sync_all().await.expect("what is there is stored");
            assert_eq!(writer.read(inode, 0, BYTES as u32).await.expect("it can be read").concat(), vec![1; BYTES]);
            writer.stop().await.expect("nothing is left to store");
        };
        world.spawn(&world.host(node), stopped).await.unwrap();
    });
}
