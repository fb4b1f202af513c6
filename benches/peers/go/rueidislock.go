package main

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// The default is a majority of three keys. For one server, the documentation advises 1.
func rueidislockDefault(url, name string) (func() (Lock, error), error) {
	return connectRueidislock(url, name, rueidislock.LockerOption{KeyMajority: 1})
}

// A client needs no notifications of its own writes.
func rueidislockTuned(url, name string) (func() (Lock, error), error) {
	return connectRueidislock(url, name, rueidislock.LockerOption{KeyMajority: 1, NoLoopTracking: true})
}

func connectRueidislock(url, name string, options rueidislock.LockerOption) (func() (Lock, error), error) {
	server, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	options.ClientOption = server
	locker, err := rueidislock.NewLocker(options)
	if err != nil {
		return nil, err
	}
	return func() (Lock, error) { return &rueidisLock{locker: locker, name: name}, nil }, nil
}

type rueidisLock struct {
	locker rueidislock.Locker
	name   string
	cancel context.CancelFunc
}

func (l *rueidisLock) Acquire() (err error) {
	_, l.cancel, err = l.locker.WithContext(context.Background(), l.name)
	return err
}

func (l *rueidisLock) Release() error {
	l.cancel()
	return nil
}
