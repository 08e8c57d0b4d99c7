// Package sshd makes hosts with a real sshd on this machine, for tests of what reaches hosts by ssh.
package sshd
