//! Bounded channels for the consensus library.

use std::future::Future;

use async_channel::{Receiver, Sender, TryRecvError as Empty, WeakSender};
use openraft::async_runtime::{Mpsc, MpscReceiver, MpscSender, MpscWeakSender, SendError, TryRecvError};

/// Channels of many senders and one receiver.
pub struct Channel;

/// A sending end.
pub struct ChannelSender<T>(Sender<T>);

/// A sending end that does not keep its channel open.
pub struct ChannelWeakSender<T>(WeakSender<T>);

/// The receiving end.
pub struct ChannelReceiver<T>(Receiver<T>);

impl Mpsc for Channel {
    type Sender<T: Send> = ChannelSender<T>;
    type Receiver<T: Send> = ChannelReceiver<T>;
    type WeakSender<T: Send> = ChannelWeakSender<T>;

    fn channel<T: Send>(bound: usize) -> (ChannelSender<T>, ChannelReceiver<T>) {
        let (sender, receiver) = async_channel::bounded(bound);
        (ChannelSender(sender), ChannelReceiver(receiver))
    }
}

impl<T> Clone for ChannelSender<T> {
    fn clone(&self) -> Self {
        ChannelSender(self.0.clone())
    }
}

impl<T> Clone for ChannelWeakSender<T> {
    fn clone(&self) -> Self {
        ChannelWeakSender(self.0.clone())
    }
}

impl<T: Send> MpscSender<Channel, T> for ChannelSender<T> {
    fn send(&self, message: T) -> impl Future<Output = Result<(), SendError<T>>> + Send {
        let sending = self.0.send(message);
        async move { sending.await.map_err(|unsent| SendError(unsent.0)) }
    }

    fn downgrade(&self) -> ChannelWeakSender<T> {
        ChannelWeakSender(self.0.downgrade())
    }
}

impl<T: Send> MpscWeakSender<Channel, T> for ChannelWeakSender<T> {
    fn upgrade(&self) -> Option<ChannelSender<T>> {
        self.0.upgrade().map(ChannelSender)
    }
}

impl<T: Send> MpscReceiver<T> for ChannelReceiver<T> {
    async fn recv(&mut self) -> Option<T> {
        self.0.recv().await.ok()
    }

    fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.0.try_recv().map_err(|error| match error {
            Empty::Empty => TryRecvError::Empty,
            Empty::Closed => TryRecvError::Disconnected,
        })
    }
}
